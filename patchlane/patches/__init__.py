"""How a pack's patch meets what is installed."""
