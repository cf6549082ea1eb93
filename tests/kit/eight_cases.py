"""FP8 on a CPU, for tests of what goes through it."""

import functools
from unittest import mock


def torchs(function):
    """Within ``function`` torch's FP8 casts and fp32 products stand in place of Transformer Engine's."""

    @functools.wraps(function)
    def run(*args):
        import torch

        from model.layers.linear import fp8, parts

        kinds = {"E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}

        def cast(x, kind):
            scale = torch.finfo(kinds[kind]).max / x.abs().amax().float().clamp(min=1e-30)
            return (x.float() * scale).to(kinds[kind]).float() / scale

        def multiplied(a, b, layout, out=None):
            y = b @ a.t() if layout == "TN" else b @ a if layout == "NN" else b.t() @ a
            return y.bfloat16() if out is None else out.add_(y)

        def accumulated(x, dy, into):
            into.add_(dy.float().t() @ x.float())

        with (
            mock.patch.multiple(fp8, quantized=cast, product=multiplied),
            mock.patch.object(parts, "accumulate", accumulated),
        ):
            return function(*args)

    return run


def error(got, want):
    return ((got.double() - want).norm() / want.norm().clamp(min=1e-30)).item()
