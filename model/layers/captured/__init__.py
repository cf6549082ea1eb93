"""Layers as CUDA graphs."""
