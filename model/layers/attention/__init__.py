"""Megatron's MLA and sparse attention, with the packs' options."""
