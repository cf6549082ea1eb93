"""What a person needs to file a pack."""
