"""Which packs to file next."""
