"""What an offline host needs, in parts."""
