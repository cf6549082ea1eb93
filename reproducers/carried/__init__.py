"""A team's own patches, as they are: read, tried on upstream's trees, moved to new ones, grown into packs."""
