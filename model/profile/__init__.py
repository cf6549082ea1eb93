"""Where a step's time and memory go."""
