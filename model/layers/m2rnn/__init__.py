"""M²RNN: Triton kernels and the reference in torch."""
