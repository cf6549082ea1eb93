"""Checkpoints as torch alone reads and writes them, and weights as safetensors."""
