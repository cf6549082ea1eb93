"""Token files on disk."""
