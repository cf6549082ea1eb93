"""The whole model: nothing looks ahead or into another document, and everything learns."""

import pytest
import tiny

pytestmark = pytest.mark.upstream
ROUNDING = 1e-4  # experts see other row counts after a change, so kernels round otherwise; logits are of order 1
FELT = 1e-2
TOKENS = (0, 17, 39, 40, 41, 55, 69, 70, 95)  # first, inner and last ones of documents, one alone


def observe(batch):
    """Logits, and the hidden states of each MTP depth, [T, .] each."""
    model, seen = tiny.model(), []
    hook = model.mtp.register_forward_hook(lambda module, given, result: seen.append(result))
    try:
        logits = model(packed_seq_params=tiny.packed(), **tiny.inputs(batch))[0]
    finally:
        hook.remove()
    return logits.detach(), *seen[0].detach()[tiny.TOKENS :, 0].split(tiny.TOKENS)


def perturbed(token, training, what):
    """Largest change of each token's logits [T], and of its state at each MTP depth, when ``token`` is another."""
    import torch

    model = tiny.model().train(training)
    before, after = tiny.batch(), tiny.batch()
    if what in ("token", "all"):
        after["tokens"][0, token] = (after["tokens"][0, token] + 1) % 256
    for name, count in tiny.SIZE.structure.fields.items():
        if what in (name, "all"):
            after["fields"][name][token] = (after["fields"][name][token] + 1) % count
    with torch.set_grad_enabled(training):
        pairs = zip(observe(after), observe(before), strict=True)
        changes = [(a - b).abs().amax(1).tolist() for a, b in pairs]
    model.train()
    return changes


def alone(low, high):
    """Largest difference of a document's logits between the packed stream and itself alone."""
    import torch

    from model.layers.common.packed import packed

    model, batch = tiny.model().eval(), tiny.batch()
    with torch.no_grad():
        whole = model(packed_seq_params=tiny.packed(), **tiny.inputs(batch))[0, low:high]
        part = {name: batch[name][:, low:high] for name in ("tokens", "positions")}
        fields = {name: value[low:high] for name, value in batch["fields"].items()}
        bounds = torch.tensor([0, high - low], dtype=torch.int32)
        single = model(packed_seq_params=packed(bounds, high - low), fields=fields, **part)[0]
    model.train()
    return (whole - single).abs().max().item()


def without_gradient():
    """Parameters whose gradient is missing, zero or not finite, at the first and at the second step from the start."""
    import torch

    model, batch, dead = tiny.fresh(), tiny.batch(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(packed_seq_params=tiny.packed(), **batch).mean().backward()
        named = list(model.named_parameters())
        assert all(p.grad is None or p.grad.isfinite().all() for _, p in named)
        dead.append([name for name, p in named if p.grad is None or not p.grad.any()])
        optimizer.step()
    return dead


def end_of(token):
    return next(high for low, high in tiny.SPANS if low <= token < high)


def start_of(token):
    return next(low for low, high in tiny.SPANS if low <= token < high)


@pytest.mark.parametrize("training", [False, True], ids=["evaluating", "training"])
@pytest.mark.parametrize("token", TOKENS)
def test_a_token_reaches_itself_and_later_tokens_of_its_document_only(megatron, token, training):
    changes, *_ = megatron.call(perturbed, token, training, "all")
    end = end_of(token)
    assert max(changes[:token] + changes[end:], default=0) < ROUNDING
    assert min(changes[token:end]) > FELT


@pytest.mark.parametrize("token", TOKENS)
def test_an_mtp_depth_sees_that_many_tokens_ahead_in_its_document_and_no_more(megatron, token):
    _, *depths = megatron.call(perturbed, token, False, "token")
    assert len(depths) == tiny.SIZE.mtp_depths
    for depth, changes in enumerate(depths, 1):
        start, end = max(token - depth, start_of(token)), end_of(token)
        assert max(changes[:start] + changes[end:], default=0) < ROUNDING
        assert min(changes[start:end]) > FELT


@pytest.mark.parametrize("what", ["token", "structure", "dep_level"])
def test_each_input_reaches_the_logits(megatron, what):
    changes, *_ = megatron.call(perturbed, 50, False, what)
    assert changes[50] > FELT and max(changes[:50]) < ROUNDING


@pytest.mark.parametrize("span", [span for span in tiny.SPANS if span[0] < span[1]], ids=str)
def test_a_packed_document_is_what_it_is_alone(megatron, span):
    assert megatron.call(alone, *span) < ROUNDING


def test_every_parameter_learns_by_the_second_step(megatron):
    first, second = megatron.call(without_gradient)
    behind_zero = {"ngram.table.weight"} | {f"structure.embeddings.{f}.weight" for f in tiny.SIZE.structure.fields}
    assert set(first) == behind_zero
    assert second == []


def counted():
    """Which tokens count at each MTP depth and in the main loss: as the loss gets it, and by positions."""
    import torch

    from model.kinds.path import Choice
    from model.layers.ends import head

    model, batch, seen = tiny.fresh(), tiny.batch(), []
    batch["loss_mask"][0, [3, 50]] = 0
    model.config.model_paths["loss"] = Choice("liger_once", "")
    kept = head.loss
    head.loss = lambda path, hidden, weight, labels, counted: (
        seen.append(counted),
        kept("torch", hidden, weight, labels),
    )[1]
    try:
        with torch.no_grad():
            model(packed_seq_params=tiny.packed(), **batch)
    finally:
        head.loss = kept
    mask = batch["loss_mask"][0].tolist()
    ends = {at: high for low, high in tiny.SPANS for at in range(low, high)}
    due = [[mask[at + depth] if at + depth < ends[at] else 0.0 for at in range(tiny.TOKENS)] for depth in (1, 2, 0)]
    return [one[0].tolist() for one in seen], due


def test_each_loss_gets_the_tokens_that_count_in_it(megatron):
    got, due = megatron.call(counted)
    assert got == due
