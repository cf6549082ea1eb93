

_settings = settings


def settings(asked, expert_parallel=1):  # appended for a trial: gradients leave the graphs' pool
    from megatron.core.transformer import cuda_graphs

    node = cuda_graphs._CudagraphReplayNode
    if asked and not hasattr(node, "_old"):
        node._old = node.backward
        node.backward = staticmethod(lambda ctx, *g: tuple(x.clone() if hasattr(x, "clone") else x for x in node._old(ctx, *g)))
    return _settings(asked, expert_parallel)
