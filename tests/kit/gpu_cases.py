"""Differences from fp64 of what runs on a GPU, and random leaves."""

import torch


def differences(run, exact, leaves):
    """Relative error norms of the output and of every leaf's gradient; ``exact`` computes in fp64."""
    import tiny

    mine = [leaf.clone().requires_grad_() for leaf in leaves]
    theirs = [leaf.double().requires_grad_() for leaf in leaves]
    got, want = run(*mine), exact(*theirs)
    weight = torch.cos(torch.arange(want.numel(), device="cuda", dtype=torch.float64)).view_as(want)
    gradients = torch.autograd.grad(got, mine, weight.to(got.dtype))
    expected = torch.autograd.grad(want, theirs, weight.to(got.dtype).double())
    pairs = [(got, want), *zip(gradients, expected, strict=True)]
    return [tiny.error(one.cpu(), other.cpu()) for one, other in pairs]


def random(*shape, seed=0):
    """Leaves of one shape need seeds of their own: queries equal to keys attend to themselves, and cancel in bf16."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to("cuda", torch.bfloat16)
