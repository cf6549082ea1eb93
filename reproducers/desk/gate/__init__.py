"""The points between a pack and its filing, and a person's approval."""
