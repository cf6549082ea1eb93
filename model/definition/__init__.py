"""NAM56R as numbers: sizes, layers, parameters, memory, FLOPs, recipes. Imports no torch."""
