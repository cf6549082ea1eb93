"""One training step on Megatron-Core."""
