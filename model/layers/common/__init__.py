"""What several layers use."""
