"""Sparse attention of the tiny model's layers 5 (computes the indices) and 9 (reuses them) against fp64 maths."""

import pytest
import tiny

pytestmark = pytest.mark.upstream
SOURCE, SHARING = 5, 9
TOPK, TOKENS = tiny.TOPK, tiny.TOKENS
FP32 = 5e-6  # relative error norm of fp32 arithmetic
MAIN = {
    "q_down": "linear_q_down_proj",
    "q_up": "linear_q_up_proj",
    "kv_down": "linear_kv_down_proj",
    "kv_up": "linear_kv_up_proj",
    "out": "linear_proj",
}
INDEXER = {
    "wq_b": "linear_wq_b.weight",
    "wk": "linear_wk.weight",
    "k_norm": "k_norm.weight",
    "k_bias": "k_norm.bias",
    "weights": "linear_weights_proj.weight",
}


def parameters(number):
    """{name in the reference: parameter} of a sparse layer's attention; the indexer's where it has one."""
    attention = tiny.layer(number).self_attention
    found = {name: attention.get_submodule(path).weight for name, path in MAIN.items()}
    indexer = getattr(attention.core_attention, "indexer", None)
    return found | ({name: indexer.get_parameter(path) for name, path in INDEXER.items()} if indexer else {})


def leaves(number):
    """The same as fp64 leaves."""
    return {name: p.detach().double().requires_grad_() for name, p in parameters(number).items()}


def attend(number, hidden, training, packed=None):
    """(output [T, h], chosen indices [T, k]) of a layer's attention in its mode."""
    tiny.model().train(training)
    packed = packed or tiny.packed()
    out, _ = tiny.layer(number).self_attention(hidden, None, packed_seq_params=packed)
    tiny.model().train()
    return out[:, 0], packed._dsa_index_share_topk_holder[SOURCE][0]


def reference(number, hidden, mask):
    """(output, probabilities, scores, leaves, fp64 hidden) of the same in fp64."""
    import mla_reference

    w, x = leaves(number), hidden.detach()[:, 0].double().requires_grad_()
    place, a = tiny.batch()["positions"][0], tiny.SIZE.attention
    out, p = mla_reference.expanded(x, place, mask, w, tiny.SIZE.heads, a.qk_nope_dim)
    inner = x.detach(), place, w | {"q_down": w["q_down"].detach()}, tiny.SIZE.indexer.heads
    return out, p, mla_reference.index_scores(*inner) if "wk" in w else None, w, x


def chosen_mask(indices):
    """[T, T] bool of the chosen keys; -1 chooses none."""
    import torch

    mask = torch.zeros(TOKENS, TOKENS + 1, dtype=torch.bool)
    return mask.scatter_(1, indices.where(indices >= 0, TOKENS), True)[:, :TOKENS]


def choice(training):
    """Of each query: (number of -1, of keys outside its document's past, of repeated keys), and how far the scores of
    its choice are from the best there are, relative to the largest score."""
    import mla_reference
    import torch

    hidden, allowed = tiny.hidden(), mla_reference.seen(tiny.CUTS)
    with torch.set_grad_enabled(training):
        _, indices = attend(SOURCE, hidden, training)
    scores = reference(SOURCE, hidden, allowed)[2].detach().masked_fill(~allowed, -torch.inf)
    best = scores.topk(TOPK).values
    got = scores.gather(1, indices.clamp_min(0)).masked_fill(indices < 0, -torch.inf).sort(descending=True).values
    gap = (best - got).nan_to_num(0, posinf=1e9).abs().max() / scores[allowed].abs().max()
    picked = chosen_mask(indices)
    kept = (indices >= 0).sum(1)
    return {
        "missing": (indices < 0).sum(1).tolist(),
        "outside": int((picked & ~allowed).sum()),
        "repeated": int((kept - picked.sum(1)).sum()),
        "gap": gap.item(),
    }


def sparse_against_dense(number):
    """{what: relative error} of a layer's output and of every gradient of it, against masked dense attention."""
    import torch

    packed, source = tiny.packed(), tiny.hidden(1)
    if number != SOURCE:
        attend(SOURCE, source, False, packed)
    hidden = tiny.hidden()
    out, indices = attend(number, hidden, False, packed)
    want, _, _, w, x = reference(number, hidden, chosen_mask(indices))
    weight = torch.linspace(-1, 1, out.numel()).view_as(out)
    names = list(MAIN)
    got = torch.autograd.grad((out * weight).sum(), [hidden, *(parameters(number)[n] for n in names)])
    ideal = torch.autograd.grad((want * weight).sum(), [x, *(w[n] for n in names)])
    errors = {n: tiny.error(a.view_as(b), b) for n, a, b in zip(["hidden", *names], got, ideal, strict=True)}
    return {"output": tiny.error(out, want)} | errors


def absorbed_against_expanded():
    """Relative error of the absorbed module that chooses every key against Megatron's expanded one of equal weights."""
    import torch

    dense, sparse = (tiny.layer(n).self_attention for n in (1, SOURCE))
    kept = {k: v.clone() for k, v in dense.state_dict().items() if v is not None}
    topk = sparse.core_attention.index_topk
    try:
        with torch.no_grad():
            for path in MAIN.values():
                dense.get_submodule(path).weight.copy_(sparse.get_submodule(path).weight)
            sparse.core_attention.index_topk = TOKENS
            got, _ = attend(SOURCE, tiny.hidden(), False)
            want, _ = dense(tiny.hidden(), None, packed_seq_params=tiny.packed())
    finally:
        sparse.core_attention.index_topk = topk
        dense.load_state_dict(kept, strict=False)
    return tiny.error(got, want[:, 0])


def indexer_loss():
    """The logged loss and the reference's; relative errors of the indexer's gradients, by autograd of the reference and
    by coeff / (b S) (r - p̄) at the scores; and the largest gradient anywhere else."""
    import mla_reference
    import torch
    from megatron.core.transformer.experimental_attention_variant.dsa import DSAIndexerLossLoggingHelper as Helper

    hidden, allowed, coeff = tiny.hidden(), mla_reference.seen(tiny.CUTS), tiny.SIZE.indexer.loss_coeff
    tiny.model().zero_grad()
    Helper.clean_loss_in_tracker()
    out, _ = attend(SOURCE, hidden, True)
    (out * 0).sum().backward()  # the indexer's loss rides on the output, whatever comes back along it
    _, p, scores, w, _ = reference(SOURCE, hidden, allowed)
    loss = coeff * mla_reference.indexer_loss(scores, p, allowed).mean()
    slope = coeff / TOKENS * (scores.masked_fill(~allowed, -torch.inf).softmax(-1) - p.mean(0))
    names = list(INDEXER)
    by_loss = torch.autograd.grad(loss, [w[n] for n in names], retain_graph=True)
    by_slope = torch.autograd.grad(scores, [w[n] for n in names], slope.detach())
    mine = parameters(SOURCE)
    inside = {id(mine[n]) for n in names}
    others = [p.grad for p in tiny.model().parameters() if id(p) not in inside and p.grad is not None] + [hidden.grad]
    return {
        "logged": Helper.tracker["values"].tolist(),
        "loss": loss.item(),
        "by loss": {n: tiny.error(mine[n].grad, g) for n, g in zip(names, by_loss, strict=True)},
        "by slope": {n: tiny.error(mine[n].grad, g) for n, g in zip(names, by_slope, strict=True)},
        "elsewhere": max(grad.abs().max().item() for grad in others),
    }


def used_indices():
    """(indices that each sparse layer attends by in a run of the model, layers with an indexer, holder's layers)."""
    from megatron.core.transformer.experimental_attention_variant import dsa

    used, run = [], dsa._run_sparse_attention
    packed = tiny.packed()
    dsa._run_sparse_attention = lambda **given: (used.append(given["topk_indices"]), run(**given))[1]
    try:
        tiny.model()(packed_seq_params=packed, **tiny.batch())
    finally:
        dsa._run_sparse_attention = run
    sparse = tiny.SIZE.numbers("dsa")
    own = [n for n in sparse if tiny.layer(n).self_attention.core_attention.indexer is not None]
    return [indices[0].tolist() for indices in used], own, list(packed._dsa_index_share_topk_holder)


@pytest.mark.parametrize("training", [False, True], ids=["evaluating", "training"])
def test_the_choice_is_the_best_of_the_documents_past(megatron, training):
    found = megatron.call(choice, training)
    assert found["missing"] == [max(TOPK - place - 1, 0) for low, high in tiny.SPANS for place in range(high - low)]
    assert (found["outside"], found["repeated"]) == (0, 0)
    assert found["gap"] < FP32


@pytest.mark.parametrize("number", [SOURCE, SHARING])
def test_sparse_attention_is_dense_attention_masked_to_the_choice(megatron, number):
    errors = megatron.call(sparse_against_dense, number)
    assert {what: error for what, error in errors.items() if error > FP32} == {}


def test_absorbed_is_expanded(megatron):
    assert megatron.call(absorbed_against_expanded) < FP32


def test_the_indexers_loss_is_the_mean_divergence_over_all_tokens_of_the_stream(megatron):
    """Megatron divides by b S of the packed stream, b = 1 and S = T: documents weigh as their tokens do."""
    found = megatron.call(indexer_loss)
    expected = [found["loss"] if n == SOURCE else 0 for n in range(1, tiny.SIZE.layer_count + 1)]
    assert found["logged"] == pytest.approx(expected, rel=1e-5)
    for way in ("by loss", "by slope"):
        assert {name: error for name, error in found[way].items() if error > 10 * FP32} == {}, way


def test_the_indexers_loss_reaches_nothing_but_the_indexer(megatron):
    assert megatron.call(indexer_loss)["elsewhere"] == 0


def test_sharing_layers_attend_by_their_sources_indices(megatron):
    (source, sharing), own, held = megatron.call(used_indices)
    assert source == sharing and own == held == [SOURCE]
