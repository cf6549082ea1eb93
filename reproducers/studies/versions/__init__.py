"""What packs say of one release or commit after another."""
