"""What NAM56R is, as numbers: sizes, layers, parameters, memory, FLOPs, recipes. Imports no torch."""
