"""MLA and sparse attention, as Megatron has them, with the packs' options."""
