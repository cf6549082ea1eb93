"""What is known of the packs' bugs, as one file, and digests of functions."""
