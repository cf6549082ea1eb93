

# appended for a trial: which replay first takes or gives a number that is not finite, noted on the device
_flags, _seen = [], [0]


def _note(label, tensors):
    import torch

    for at, x in enumerate(tensors):
        if torch.is_tensor(x) and x.is_floating_point() and x.numel():
            _flags.append((f"{label}[{at}] {tuple(x.shape)} {x.dtype}", torch.isfinite(x).all()))


def _told():
    import os

    bad = [label for label, fine in _flags if not fine.item()]
    _seen[0] += 1
    print(f"watch rank {os.environ.get('RANK')} pass {_seen[0]}: {len(_flags)} looked at, {len(bad)} not finite {bad[:8]}", flush=True)
    _flags.clear()


def _name(runner):
    func = getattr(runner.func, "__name__", "forward")
    return f"{type(runner.base_module).__name__} {getattr(runner.base_module, 'layer_number', '?')} {func}"


_settings_w = settings


def settings(asked):
    import atexit

    from megatron.core.transformer import cuda_graphs

    node = cuda_graphs._CudagraphReplayNode
    if asked and not hasattr(node, "_watched"):
        node._watched = fwd, bwd = node.forward, node.backward

        def forward(ctx, runner, first, *inputs):
            if _flags and " bwd " in _flags[-1][0]:
                _told()
            _note(f"{_name(runner)} fwd in", inputs[: runner.num_dgrads])
            out = fwd(ctx, runner, first, *inputs)
            _note(f"{_name(runner)} fwd out", out)
            return out

        def backward(ctx, *grads):
            _note(f"{_name(ctx.runner)} bwd in", grads)
            out = bwd(ctx, *grads)
            _note(f"{_name(ctx.runner)} bwd out", out[2 : 2 + ctx.runner.num_dgrads])
            _note(f"{_name(ctx.runner)} bwd weights", out[2 + ctx.runner.num_dgrads :])
            return out

        node.forward, node.backward = staticmethod(forward), staticmethod(backward)
        atexit.register(_told)
    return _settings_w(asked)
