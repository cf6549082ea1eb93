"""Which packs' bugs an installed environment has."""
