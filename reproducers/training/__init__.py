"""What kept training runs tell of patches: the lines of each that a run executed, and where each patch runs."""
