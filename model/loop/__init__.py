"""The training loop around the step: start, checkpoints, refusals, progress."""
