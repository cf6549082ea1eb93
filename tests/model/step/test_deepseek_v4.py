"""DeepSeek-V4 as a network: against the model of plain torch, over packed documents, and what learns."""

import itertools
import math

import pytest
import torch
import trained
import v4_model as v4
import v4_network as net

from model.alignment.deepseek_v4 import dims
from model.definition import parameters
from model.families.deepseek_v4 import SIZES

pytestmark = pytest.mark.upstream
LENGTHS = [21, 1, 0, 33, 9]  # one without a window, one of a single token, an empty one
ROUNDING = 1e-4  # other row counts of experts are rounded otherwise; logits are of order 10
DRAWN = range(4)


def sized(seed):
    return net.TINY if seed < 0 else net.size(v4.drawn(seed))


def row(of, seed=1):
    return v4.row(LENGTHS, dims.config(of), seed)


def compared(seed, recompute=False):
    """The largest differences of logits, losses and gradients, and the parameters without any gradient."""
    from model.alignment import trained

    of = sized(seed)
    built, plain = net.pair(of, seed + 1, recompute=recompute)
    tokens, cu = row(of)
    expected, said = net.plain_losses(of, plain, tokens, cu)
    found = dict(zip(("logits", "mtp"), net.states(built, tokens, cu), strict=True))
    off = {name: net.off(found[name], said[name]) for name in found}
    losses = net.network_losses(of, built, tokens, cu)
    net.total(of, expected).backward()
    ours = trained.whole(built, lambda held: held.grad)
    theirs = net.to_network({name: p.grad for name, p in plain.named_parameters() if p.grad is not None})
    gradients = {name: net.off(ours[name], grad, 1e-4) for name, grad in theirs.items() if name in ours}
    without = [name for name, p in built.named_parameters() if p.grad is None] + sorted(ours.keys() - theirs.keys())
    gaps = {name: abs(losses[name] - float(expected[name].detach())) for name in expected}
    return off, gaps, max(gradients.values()), len(gradients) == len(theirs), without


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("seed", [-1, *DRAWN])
def test_values_losses_and_gradients_are_those_of_the_model_of_plain_torch(deepseek, seed, recompute):
    off, losses, gradients, whole, without = deepseek.call(compared, seed, recompute)
    assert max(off.values()) < 1e-5 and set(losses) == {"lm", "mtp", "index", "aux"}
    assert max(losses.values()) < 1e-5
    assert gradients < 1e-4 and whole and without == []


def built(name):
    """{key: shape} of a checkpoint of the size, and how many parameters the model has."""
    import torch

    from model.loop.saving import sharded

    with torch.device("meta"):
        model = net.network(SIZES[name])
    kept = sharded.weights(model).values()
    return {one.key: one.global_shape for one in kept}, sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["v4_tiny", "v4_small", "v4_medium"])
def test_a_checkpoint_has_the_names_and_shapes_that_the_kinds_say(deepseek, name):
    size = SIZES[name]
    shapes, count = deepseek.call(built, name)
    assert shapes == parameters.shapes(size)
    biases = (size.count("topk_moe") + size.mtp_depths) * size.experts.count  # parameters by count, buffers here
    assert count == parameters.total(size) - biases


def moved(optimizer, bf16, lengths=((21, 43), (64,))):
    """The step's losses and norm, and parameters that did not move, or that are not finite."""
    engine = net.engine(net.TINY, optimizer, bf16=bf16)
    before = {name: p.detach().clone() for name, p in engine.inner.named_parameters()}
    rows = [net.micro_batch(*v4.row(list(one), dims.config(net.TINY), seed)) for seed, one in enumerate(lengths)]
    outcome = engine.step(rows)
    after = dict(engine.inner.named_parameters())
    still = [name for name, p in after.items() if bool((p == before[name]).all())]
    odd = [name for name, p in after.items() if not bool(p.isfinite().all())]
    wide = {name for name, p in after.items() if p.dtype == torch.float32}
    bias = {name for name, b in engine.inner.named_buffers() if name.endswith("expert_bias") and bool(b.any())}
    values = [*outcome.losses.values(), outcome.grad_norm]
    return values, still, odd, wide, bias


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_moves_every_parameter_and_keeps_in_fp32_what_stays_so(deepseek, optimizer, bf16):
    values, still, odd, wide, bias = deepseek.call(moved, optimizer, bf16)
    assert still == [] and odd == []
    assert len(values) == 5 and all(value > 0 and math.isfinite(value) for value in values)
    if bf16:
        kept = ("norm.weight", "layernorm.weight", "ape", "attn_sink", "scale", "bias", "mapping_proj.weight")
        assert wide and {name for name in wide if not name.endswith(kept)} == set()
        assert {name.rpartition("core_attention.")[2] for name in wide if "core_attention" in name} >= {"attn_sink"}
    numbers = [number - 1 for number in net.TINY.numbers("topk_moe")]
    learned = [f"decoder.layers.{number}." for number in numbers] + ["mtp.layers.0.mtp_model_layer.layers.1."]
    assert bias == {f"{place}mlp.router.expert_bias" for place in learned}  # a hash router's stays zero


def decays():
    """{name: (dimensions, what AdamW decays of it)}."""
    engine = net.engine(net.TINY)
    sides = {name: p.ndim for name, p in engine.inner.named_parameters()}
    return {name: (sides[name], group["weight_decay"]) for name, group, _ in trained.grouped(engine)}


def test_weight_decay_takes_the_matrices_alone(deepseek):
    """Not what is added: sinks, biases and scales of hyper-connections, norms, a window's places, embeddings."""
    found = deepseek.call(decays)
    matrices = {name for name in found if name.split(".")[-2] in net.TINY.matrices | {"output_layer"}}
    assert {name for name, (_, decay) in found.items() if decay} == matrices
    assert {found[name] for name in matrices} == {(2, 0.1)}
    spared = {name.rpartition(".")[2] for name in found.keys() - matrices}
    assert spared == {"weight", "bias", "scale", "ape", "attn_sink"}
    assert {name for name, (sides, _) in found.items() if sides == 2} - matrices == {
        "embedding.word_embeddings.weight",
        *(name for name in found if name.endswith(".ape")),
    }


def observed(at, other):
    """Largest change of each token's logits [T], and of MTP's, when token ``at`` is another."""
    built, _ = net.pair(net.TINY, spread=0.3)
    tokens, cu = v4.row([13, 30], dims.config(net.TINY))
    changed = tokens.clone()
    changed[at] = (tokens[at] + other) % net.TINY.vocab
    with torch.no_grad():
        both = [net.states(built.eval(), row, cu) for row in (tokens, changed)]
    return [(a - b).abs().amax(-1).tolist() for a, b in zip(*both, strict=True)]


@pytest.mark.parametrize("at", [0, 7, 12, 13, 33, 42])
def test_a_token_reaches_itself_and_later_tokens_of_its_document_only(deepseek, at):
    logits, mtp = deepseek.call(observed, at, 1)
    start, end = (0, 13) if at < 13 else (13, 43)
    for changes, early in ((logits, 0), (mtp, 1)):  # MTP reads the next token
        first = max(at - early, start)
        assert max(changes[:first] + changes[end:], default=0) < ROUNDING
        assert changes[first] > 1e-2 and sum(change > ROUNDING for change in changes[first:end]) > (end - first) / 2


def alone():
    """Largest difference of each document's logits, and MTP's, packed and alone."""
    built, _ = net.pair(net.TINY)
    tokens, cu = row(net.TINY)
    found, bounds = [], cu.tolist()
    with torch.no_grad():
        whole = net.states(built.eval(), tokens, cu)
        for low, high in itertools.pairwise(bounds):
            if low < high:
                single = net.states(built, tokens[low:high], torch.tensor([0, high - low]).int())
                found += [float((a[low:high] - b).abs().max()) for a, b in zip(whole, single, strict=True)]
    return found


def test_a_packed_document_is_what_it_is_alone(deepseek):
    assert max(deepseek.call(alone)) < ROUNDING


def hashed():
    """Of the hash router: experts of each token, those of the table, and how many are others for another hidden state
    or for other ids."""
    built, _ = net.pair(net.TINY)
    tokens, _ = row(net.TINY)
    router = built.decoder.layers[net.TINY.numbers("hash_moe")[0] - 1].mlp.router.eval()
    hidden = torch.randn(2, len(tokens), 1, net.TINY.hidden, generator=torch.Generator().manual_seed(3))

    def chosen(ids, state):
        router.tokens = ids[:, None]
        return router(state)[1]

    due = torch.zeros(len(tokens), net.TINY.experts.count, dtype=torch.bool)
    due = due.scatter(1, router.tid2eid[tokens].long(), True)
    by_ids = [chosen(tokens, state) for state in hidden] + [chosen((tokens + 1) % net.TINY.vocab, hidden[0])]
    same = [bool((found == due).all()) for found in by_ids]
    router.tokens = tokens[:-1, None]
    with pytest.raises(ValueError, match=str(len(tokens))):
        router(hidden[0])
    return same, router.weight.requires_grad


def test_a_hash_router_chooses_by_ids_alone(deepseek):
    assert deepseek.call(hashed) == ([True, True, False], True)


def changed_size(mtp_depths, mtp_loss_coeff, aux_loss_coeff):
    return net.TINY.model_copy(
        update={
            "mtp_depths": mtp_depths,
            "mtp_loss_coeff": mtp_loss_coeff,
            "experts": net.TINY.experts.model_copy(update={"aux_loss_coeff": aux_loss_coeff}),
        }
    )


def main_alone(arms):
    """Of each arm with the first one's weights: the losses [T], and the gradients of all that is not MTP's."""
    from model.alignment.trained import batch

    (first, _), found = net.pair(net.TINY), []
    weights = net.held(first)
    for arm in arms:
        built = net.network(changed_size(*arm))
        with torch.no_grad():
            for name, tensor in net.held(built).items():
                if not name.endswith("_extra_state"):
                    tensor.copy_(weights[name])
        given = batch(*row(net.TINY))
        losses = built(**given)[0]
        (losses * given["loss_mask"][0]).sum().backward()
        own = {name: p.grad for name, p in built.named_parameters() if not name.startswith("mtp.")}
        found.append((losses.detach(), own))
    (losses, own), *others = found
    return [
        (torch.equal(losses, more), own.keys() == theirs.keys(), sum(not torch.equal(own[n], theirs[n]) for n in own))
        for more, theirs in others
    ]


def test_mtp_of_no_weight_leaves_losses_and_gradients_bit_for_bit_and_of_any_weight_the_main_loss(deepseek):
    """Its router's balance is a loss of its own, which reaches the streams that it is given."""
    without = (0, 0.0, 0.0)
    arms = [without, (1, 0.0, 0.0), (1, 0.1, 0.0), (1, 0.0, 0.1)]
    none, some, balance = deepseek.call(main_alone, arms)
    assert none == (True, True, 0)
    assert some[:2] == balance[:2] == (True, True) and some[2] > 50 and balance[2] > 50
