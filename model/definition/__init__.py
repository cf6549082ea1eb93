"""What follows from a size: parameters, memory, traffic, FLOPs; and recipes. Imports no torch."""
