#!/bin/bash
uv pip install "toyup==1.0"
