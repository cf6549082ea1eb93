"""A queue on upstream's trees: what applies, what is in, what conflicts with what."""
