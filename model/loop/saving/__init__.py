"""A run's checkpoints: what they hold, how they are written beside the steps, and read."""
