"""A run's records, as written and as read."""
