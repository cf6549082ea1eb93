"""What the ranks of a run decide together."""
