"""The rotary embedding by the kernel and by Megatron's function on the same inputs."""

import torch

from model.layers.attention.rotary import rotating


def case(dtype, shape, paired, device, layout="whole", scale=1.0):
    """{what: largest difference} of the result and the gradient, whose strides are not the tensor's own."""
    from megatron.core.models.common.embeddings import rope_utils

    upstream = rope_utils._apply_rotary_pos_emb_bshd
    assert upstream.__module__ == rope_utils.__name__, "a model of this process has replaced Megatron's function"
    rows, batch, heads, width = shape
    draw = torch.Generator().manual_seed(rows)
    whole = torch.randn(rows, batch, heads, 2 * width, generator=draw).to(dtype).to(device)
    x = {"whole": whole[..., :width].contiguous(), "part": whole[..., width:]}[layout]
    angles = 3 * torch.randn(rows, 1, 1, width // 2, generator=draw).to(device)
    freqs = torch.cat((angles, angles), dim=-1)
    up = torch.randn(batch, rows, heads, width, generator=draw).to(dtype).to(device).transpose(0, 1)
    found = []
    for function in (rotating(refuse), upstream):
        given = x.detach().requires_grad_()
        out = function(given, freqs, mla_rotary_interleaved=paired, mscale=scale)
        found.append((out, *torch.autograd.grad(out, given, up)))
    return {
        what: float((ours.float() - theirs.float()).abs().max()) if ours.dtype == theirs.dtype == dtype else "dtype"
        for what, ours, theirs in zip(("result", "gradient"), *found, strict=True)
    }


def refuse(*arguments):
    raise AssertionError(f"Megatron's own function was called: {arguments}")
