"""The texts that are posted, and what they may state."""
