

_settings = settings


def settings(asked, expert_parallel=1):  # appended for a trial: nothing runs beside a replay
    from megatron.core.transformer import cuda_graphs

    node = cuda_graphs._CudagraphReplayNode
    if asked and not hasattr(node, "_old"):
        import torch

        def alone(run):
            def waits(*given):
                torch.cuda.synchronize()
                out = run(*given)
                torch.cuda.synchronize()
                return out

            return waits

        node._old = node.backward
        node.forward, node.backward = staticmethod(alone(node.forward)), staticmethod(alone(node.backward))
    return _settings(asked, expert_parallel)
