"""The head and its loss in one against cross entropy on whole logits."""

import pytest
import tiny
from scripted import run

pytestmark = pytest.mark.upstream
FP32 = 1e-5


def chunked(tokens, chunk):
    """Relative errors of value and gradients against fp64 cross entropy, and the most rows of logits ever held."""
    import torch
    from torch.nn.functional import cross_entropy

    from model.layers.ends import head

    torch.manual_seed(0)
    hidden, weight = torch.randn(tokens, 24, requires_grad=True), torch.randn(50, 24, requires_grad=True)
    labels, scale = torch.randint(50, (tokens,)), torch.rand(tokens)
    rows, kept, linear = [], head.CHUNK, head.linear
    head.CHUNK = chunk or kept
    head.linear = lambda x, w: (rows.append(len(x)), linear(x, w))[1]
    try:
        loss = head.chunked_loss(hidden, weight, labels)
        (loss * scale).sum().backward()
    finally:
        head.CHUNK, head.linear = kept, linear
    h, w = (x.detach().double().requires_grad_() for x in (hidden, weight))
    ideal = cross_entropy(h @ w.T, labels, reduction="none")
    (ideal * scale).sum().backward()
    errors = tiny.error(loss, ideal), tiny.error(hidden.grad, h.grad), tiny.error(weight.grad, w.grad)
    return max(errors), max(rows), kept


def model_loss():
    """Relative error of the model's loss of each token from cross entropy on its logits, their shapes, and the largest
    difference of the logits from the hidden states before the head times its weight."""
    import torch
    from torch.nn.functional import cross_entropy

    model, batch, seen = tiny.model().eval(), tiny.batch(), []
    hook = model.decoder.register_forward_hook(lambda module, given, result: seen.append(result))
    with torch.no_grad():
        logits = model(packed_seq_params=tiny.packed(), **tiny.inputs(batch))
        loss = model(packed_seq_params=tiny.packed(), **batch)
        product = seen[0][:, 0] @ model.output_layer.weight.T
    hook.remove()
    model.train()
    ideal = cross_entropy(logits[0], batch["labels"][0], reduction="none")[None]
    return tiny.error(loss, ideal), list(logits.shape), list(loss.shape), tiny.error(logits[0], product)


@pytest.mark.parametrize("tokens", [1, 64, 65, 200])
def test_chunks_are_the_whole(megatron, tokens):
    error, rows, _ = megatron.call(chunked, tokens, 64)
    assert error < FP32
    assert rows <= 64


def test_the_chunk_that_is_trained_with(megatron):
    error, rows, chunk = megatron.call(chunked, 9000, None)
    assert error < FP32
    assert rows == chunk == 4096


def test_the_models_loss_is_cross_entropy_on_its_logits(megatron):
    error, logits, loss, product = megatron.call(model_loss)
    assert error < FP32 and product < FP32
    assert logits == [1, tiny.TOKENS, tiny.SIZE.vocab] and loss == [1, tiny.TOKENS]


@pytest.mark.long
def test_ligers_losses_are_fp64s_and_the_same():
    """Without gradients by the same kernels, and without a wait."""
    errors = run("interpreted_head.py", TRITON_INTERPRET="1")
    assert max(errors["liger"]) < FP32
    assert errors["alone"]
    assert max(errors["once"]) < FP32  # gradients made with the losses, of several sizes, chunks and masks
    assert errors["unlike"] == [False, True, True]
    assert errors["again"]
