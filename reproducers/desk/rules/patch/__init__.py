"""Rules about patches."""
