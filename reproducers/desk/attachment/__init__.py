"""A reproducer and its probe as one file."""
