"""The decoder gives the training forward's logits, however the tokens are passed, and needs every part of its state."""

import copy
import itertools

import decoding
import pytest
import torch

from model.exported.dims import Dims
from model.exported.network import Network
from model.families import sizes
from model.generation import loading
from model.saved import hub

pytestmark = pytest.mark.upstream
ROUNDING = 1e-9  # of fp64, relative to the largest logit
LOST = 1e-4
SIZES = ["nam56r_tiny", "nam56r_siso"]
DOCUMENTS = [*itertools.pairwise(decoding.CUTS)]
PROMPT = 20
FEW = 12  # so few tokens that the sparse layers choose all: no near equals to choose from
FP32 = 1e-4  # twelve layers of fp32


@pytest.fixture(scope="module")
def references(stack, tmp_path_factory):
    """{size: what the training forward gave, and the decoder of the same weights}."""
    found, folder = {}, tmp_path_factory.mktemp("references")
    for name in SIZES:
        ended = stack.run("decoding:reference", name, str(folder / name))
        assert ended.code == 0, ended.said
        made = torch.load(folder / name)
        decoder = loading.filled(decoding.size(name), made["tensors"].items(), None, torch.device("cpu"))
        found[name] = made | {"decoder": decoder}
    return found


def error(made, document, passes, spoil=None):
    """Largest difference of a document's logits from the training forward's, over its largest logit, with the tokens in
    passes of so many; ``spoil`` changes the state after each."""
    (low, high), decoder, found = document, made["decoder"], []
    state = decoder.begin(high - low)
    with torch.inference_mode():
        for taken in passes:
            part = slice(low + state.read, low + state.read + taken)
            fields = {name: values[part] for name, values in made["fields"].items()}
            found.append(decoder.logits(decoder(made["tokens"][part], fields, state)))
            if spoil is not None:
                spoil(state)
    got, want = torch.cat(found), made["logits"][low:high]
    assert got.dtype is want.dtype is torch.float64 and got.shape == want.shape
    return float((got - want).abs().max() / want.abs().max())


def passes(way, count):
    ways = {
        "one by one": [1] * count,
        "at once": [count],
        "a prompt, then one by one": [PROMPT, *[1] * (count - PROMPT)],
        "by threes": [3] * (count // 3) + [count % 3] * (count % 3 > 0),
    }
    return ways[way]


def losing(kind, part):
    """What sets a part of the state of the first layer of a kind to what it is ahead of a document, or its newest row
    where it is a cache."""

    def spoil(state):
        held = state.layers[decoding.size(SIZES[0]).numbers(kind)[0] - 1]
        rows = getattr(held, part)
        if isinstance(rows, torch.Tensor):
            setattr(held, part, torch.zeros_like(rows))
        else:
            rows.held[rows.count - 1] = 0

    return spoil


def other_tokens(state):
    state.last = state.last + 1


PARTS = {"last tokens": other_tokens} | {
    f"{kind} {part}": losing(kind, part)
    for kind, parts in {
        "mla": ["latents"],
        "dsa": ["latents", "index"],
        "mamba3": ["h", "angle", "key", "value"],
        "m2rnn": ["h", "window"],
    }.items()
    for part in parts
}


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
@pytest.mark.parametrize("way", ["one by one", "at once", "a prompt, then one by one", "by threes"])
@pytest.mark.parametrize("name", SIZES)
def test_it_is_the_training_forward_token_by_token(references, name, way, document):
    count = document[1] - document[0]
    assert count > decoding.TOPK
    assert error(references[name], document, passes(way, count)) < ROUNDING


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", SIZES)
def test_every_part_of_the_state_is_needed(references, name, part):
    document = DOCUMENTS[1]
    count = document[1] - document[0]
    assert error(references[name], document, passes("one by one", count), PARTS[part]) > LOST


def drawn(name):
    """A decoder of a size as it is, of drawn weights."""
    decoder, generator = Network(Dims.of(hub.network(sizes.SIZES[name]))), torch.Generator().manual_seed(0)
    for held in (*decoder.parameters(), *decoder.buffers()):
        wide = held.shape[-1] ** -0.5 if held.dim() > 1 else 0.1
        held.copy_(torch.randn(held.shape, generator=generator) * wide + (held.dim() == 1))
    return decoder


def both(decoder, device):
    """Logits [TOKENS, vocab] on a device, at once and then one by one."""
    tokens, decoder = torch.arange(2 * FEW, device=device) * 7 % 256, copy.deepcopy(decoder).to(device)
    with torch.inference_mode():
        state = decoder.begin(len(tokens))
        parts = [tokens[:FEW], *tokens[FEW:].split(1)]
        return torch.cat([decoder.logits(decoder(part, None, state)) for part in parts]).cpu()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", SIZES)
def test_a_gpu_gives_the_host_s_logits(name):
    decoder = drawn(name)
    got, want = both(decoder, "cuda"), both(decoder, "cpu")
    assert (got - want).norm() / want.norm() < FP32
