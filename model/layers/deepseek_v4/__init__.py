"""DeepSeek-V4's layers in plain torch: the definition of each part, and the path for CPUs.

The formulas are those of DeepSeek's own inference/model.py (read in Nicooo-Wang/DeepSeek-V4-Pro-code@0ec3a03c). It has
no loss; what is only trained names its own source. Hidden states of a packed row are [T, 1, d], documents have bounds
``cu_seqlens`` int32 [D+1], and streams are [T, 1, n, d]: that lies between layers and goes to another pipeline stage.
Statistics, softmaxes and sums are in fp32, in fp64 where the input is fp64.
"""
