"""Gradients of the whole model are those of its losses, by differences along a drawn direction a parameter."""

import pytest
import tiny

pytestmark = pytest.mark.upstream
# (step of a difference, limit of its error as a part of the gradient's norm), by whose loss it is. The indexer's is
# computed in fp32 and has a kink where a score is 0 or another key is chosen, so a difference goes both ways; all else
# is in fp64, where one way is enough.
TERMS = {"others": (1e-7, 1e-4), "indexer": (1e-4, 1e-2)}


def slopes(whose, halved=None):
    """{parameter: (norm of its gradient, slope by the gradient, slope by differences)}; ``halved``: the end of
    a name whose gradient to get wrong.

    The indexer learns from its own loss alone, and nothing else learns from that.
    """
    import contextlib

    import decoding
    import torch
    from megatron.core.transformer.experimental_attention_variant.dsa import DSAIndexerLossAutoScaler
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
    from megatron.core.transformer.multi_token_prediction import MTPLossAutoScaler

    indexer, (step, _) = whose == "indexer", TERMS[whose]
    dtype = torch.float32 if indexer else torch.float64
    model, generator, parts = tiny.fresh().to(dtype), torch.Generator().manual_seed(0), []
    for config in {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values():
        config.dsa_indexer_loss_coeff = tiny.SIZE.indexer.loss_coeff if indexer else 0.0
    for name, held in model.named_parameters():
        matrix = held.dim() == 2 and name.endswith("weight")
        scale = (1.0 if "embedding" in name or "ngram" in name else held.shape[1] ** -0.5) if matrix else 0.1
        drawn = torch.randn(held.shape, generator=generator, dtype=dtype) * scale
        held.data = drawn if matrix else held.data + drawn

    def loss():
        """What autograd is given, with what the scalers add to it."""
        parts.clear()
        main = model(packed_seq_params=tiny.packed(), **tiny.batch()).mean()
        return main, sum(parts) if indexer else main.detach() + sum(parts)

    def watched(scaler):
        given = scaler.forward
        scaler.forward = staticmethod(
            lambda ctx, output, own: parts.append(own.detach().sum()) or given(ctx, output, own)
        )
        return lambda: setattr(scaler, "forward", staticmethod(given))

    with contextlib.ExitStack() as undo:
        if not indexer:
            undo.enter_context(decoding.exact())
        for scaler in [DSAIndexerLossAutoScaler] if indexer else [MoEAuxLossAutoScaler, MTPLossAutoScaler]:
            undo.callback(watched(scaler))
        given, here = loss()
        given.backward()
        here, found = float(here), {}
        for name, held in model.named_parameters():
            if (".indexer." in name) != indexer:
                continue
            way, start = torch.randn(held.shape, generator=generator, dtype=dtype), held.data
            held.data = start + step * way
            there = float(loss()[1])
            span, back = step, here
            if indexer:
                held.data = start - step * way
                span, back = 2 * step, float(loss()[1])
            held.data = start
            slope = float((held.grad * way).sum()) * (0.5 if halved and name.endswith(halved) else 1)
            found[name] = float(held.grad.norm()), slope, (there - back) / span
    return found


def wrong(whose, found):
    """The parameters whose two slopes are not alike."""
    return {name: (a, b) for name, (norm, a, b) in found.items() if not abs(a - b) < TERMS[whose][1] * norm}


@pytest.mark.rest
@pytest.mark.parametrize("whose", TERMS)
def test_gradients_are_differences_of_the_loss(megatron, whose):
    found = megatron.call(slopes, whose)
    assert len(found) >= (150 if whose == "others" else 5) and all(norm > 0 for norm, *_ in found.values())
    assert not wrong(whose, found)


def test_a_gradient_that_is_half_of_what_it_should_be_is_seen(megatron):
    found = megatron.call(slopes, "indexer", "k_norm.weight")
    assert [name.endswith("indexer.k_norm.weight") for name in wrong("indexer", found)] == [True]
