"""DeepSeek-V4's operations as Triton kernels, forward and backward, each with the torch code of ``deepseek_v4`` as its
reference. They want a GPU, or Triton's interpreter. A layer of attention takes what this package names.
"""

from model.layers.deepseek_v4.hybrid.kernels.core import core_attention
from model.layers.deepseek_v4.hybrid.kernels.indexer import loss, select
from model.layers.deepseek_v4.hybrid.kernels.pooling import pool
from model.layers.deepseek_v4.hybrid.kernels.rows import norm_rotate

__all__ = ["core_attention", "loss", "norm_rotate", "pool", "select"]
