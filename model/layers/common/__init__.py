"""Parts that several layers use."""
