"""Mamba-3's MIMO scan over rows by kernels for sm_90, in Gluon (Triton 3.6's ``triton.experimental.gluon``).

The arithmetic of the backward pass is that of pack 53's kernels. What a product reads comes by TMA into shared memory
and stays there. Rounded otherwise: gradients of q and k are scaled by row in fp32 after their product, not in bf16
before; states are added up in fp32 along a row. Of q and k turned, their gradients and states, first come the channels
that turn, of the low half and of the high one, then likewise those that do not. Sizes are those of ``paths``: rank 4,
chunks of 16, state 128, heads of 64 channels, 32 angles; places are 32-bit, for less than 262,144 tokens of 128 heads.
"""
