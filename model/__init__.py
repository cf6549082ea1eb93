"""NAM56R trained on Megatron-Core through the packs' patches."""
