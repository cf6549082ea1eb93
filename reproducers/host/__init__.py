"""What this host has, and which packs it can run."""
