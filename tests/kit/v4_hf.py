"""``transformers``' DeepSeek-V4 with the weights of the room's model, as the alignment builds it and maps its names."""

import pytest
import torch
import v4_model as v4
import v4_network as net

from model.alignment.deepseek_v4 import public
from model.saved import public as names
from patchlane.base.errors import CannotTestHere


def needed():
    """Skips the test where the version that was compared is not installed."""
    try:
        public.require()
    except CannotTestHere as lacking:
        pytest.skip(str(lacking))


def config(c):
    constants = {"rms_norm_eps": c.eps, "hc_eps": c.hc_eps, "swiglu_limit": c.limit}
    return public.config(net.size(c), constants, public.YARN | {"original_max_position_embeddings": c.original})


def in_hyper(name):
    """Their name of a hyper-connection's tensor, or of the head's."""
    return name.replace("mapping_proj.weight", "fn").replace("bias", "base")


def theirs_of(tensors, c):
    """{their name: tensor} of {our name: tensor}."""
    return names.exported(net.size(c), net.to_network(tensors))


def pair(c, seed=0, spread=0.15):
    """Our model without MTP and theirs with its weights, fp32."""
    needed()
    ours = v4.fill(v4.Whole(c, mtp=False), seed, spread)
    theirs = public.model(config(c))
    given = theirs_of(dict([*ours.named_parameters(), *ours.named_buffers()]), c)
    assert set(given) == set(public.tensors(theirs))
    public.fill(theirs, given)
    return ours, theirs


def off(ours, theirs, least=1.0):
    """The largest difference, as a part of their largest value where that is above ``least``."""
    ours, theirs = ours.detach(), theirs.detach()
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=least)) if theirs.numel() else 0.0


def off_gradient(ours, theirs):
    """``off`` of gradients, which are small where a mean loss is far away."""
    return off(ours, theirs, 1e-4)


def gradients(output, module, *inputs, seed=3):
    """{name: gradient} of the module's parameters and of the inputs by number, for a drawn gradient of the output."""
    rng = torch.Generator().manual_seed(seed)
    dy = torch.randn(output.shape, generator=rng, dtype=output.dtype)
    wanted = {**dict(module.named_parameters()), **{str(i): x for i, x in enumerate(inputs)}}
    found = torch.autograd.grad(output, list(wanted.values()), dy, allow_unused=True)
    return dict(zip(wanted, found, strict=True))
