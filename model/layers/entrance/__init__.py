"""Additions to the token embedding: hashed n-grams and the structure of code."""
