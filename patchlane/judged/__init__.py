"""Each pack's answer for an environment, and what is best done about it."""
