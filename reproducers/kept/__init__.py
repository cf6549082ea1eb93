"""Records as they are kept: open, packed by xz, or in the archive of their folder."""
