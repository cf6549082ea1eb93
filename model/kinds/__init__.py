"""What can be said of layer kinds and kernel paths without torch."""
