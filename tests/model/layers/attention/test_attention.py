"""Dense attention over packed documents against each document's own in fp64, and the dense MLA layer."""

import pytest
import tiny

pytestmark = pytest.mark.upstream


def packed_attention(dtype, width):
    """Largest relative error of output and gradients, documents attended to one by one in fp64."""
    import torch

    from model.layers.attention import attention

    generator = torch.Generator().manual_seed(0)
    shapes = ((tiny.TOKENS, 3, 16), (tiny.TOKENS, 3, 16), (tiny.TOKENS, 3, width))
    given = [torch.randn(shape, generator=generator).to(getattr(torch, dtype)) for shape in shapes]
    leaves, exact = [x.clone().requires_grad_() for x in given], [x.double().requires_grad_() for x in given]
    got = attention.masked_attention(*leaves, tiny.bounds(), 0.3)
    parts = []
    for low, high in tiny.SPANS:
        q, k, v = (x[low:high] for x in exact)
        scores = torch.einsum("tnd,snd->nts", q, k) * 0.3
        later = torch.ones(high - low, high - low).triu(1).bool()
        parts.append(torch.einsum("nts,snd->tnd", scores.masked_fill(later, -torch.inf).softmax(-1), v))
    want = torch.cat(parts)
    weight = torch.linspace(-1, 1, want.numel(), dtype=torch.float64).view_as(want)
    (got * weight.to(got.dtype)).sum().backward()
    (want * weight.to(got.dtype).double()).sum().backward()
    errors = [tiny.error(a.grad, b.grad) for a, b in zip(leaves, exact, strict=True)]
    return max(tiny.error(got, want), *errors)


def dense_layer():
    """Relative error of layer 1's attention from fp64 MLA over each document's past."""
    import mla_reference
    import torch

    attention, a = tiny.layer(1).self_attention, tiny.SIZE.attention
    paths = {"q_down": "linear_q_down_proj", "q_up": "linear_q_up_proj", "kv_down": "linear_kv_down_proj"}
    paths |= {"kv_up": "linear_kv_up_proj", "out": "linear_proj"}
    w = {name: attention.get_submodule(path).weight.double() for name, path in paths.items()}
    with torch.no_grad():
        got, _ = attention(tiny.hidden(), None, packed_seq_params=tiny.packed())
        given = tiny.hidden()[:, 0].double(), tiny.batch()["positions"][0], mla_reference.seen(tiny.CUTS), w
        want, _ = mla_reference.expanded(*given, tiny.SIZE.heads, a.qk_nope_dim)
    return tiny.error(got[:, 0], want)


@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-12), ("float32", 1e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("width", [16, 8])
def test_packed_attention_is_each_documents_own(megatron, dtype, limit, width):
    assert megatron.call(packed_attention, dtype, width) < limit


def test_a_dense_layer_is_multi_latent_attention(megatron):
    assert megatron.call(dense_layer) < 1e-5
