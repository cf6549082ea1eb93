"""Before the layers, additions to the token embedding (hashed n-grams, the structure of code); after them, the head."""
