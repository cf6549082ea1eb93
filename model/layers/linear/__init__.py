"""Linear layers: weight gradients added to fp32, products in FP8, outputs in parts."""
