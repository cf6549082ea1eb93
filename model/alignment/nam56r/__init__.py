"""NAM56R on Megatron in fp32 beside its formulas in fp64, which share no line with ``model/layers``."""
