"""A reproducer and its probe as a single file."""
