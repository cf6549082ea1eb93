"""A run of DeepSeek-V4 leaves as transformers' model, which computes the same, and a run begins with what it saves."""

import pytest
import torch
import v4_hf
import v4_network
from train_kit import good, steps, train
from typer.testing import CliRunner

from model import weights as verb
from model.alignment.deepseek_v4 import public
from model.families.sizes import SIZES
from model.records import history
from model.saved import reading, tensor_files, weights

pytestmark = pytest.mark.upstream
COMMON = {"first": "v4_tiny", "save_every": 100, "evaluate_every": 100, "warmup": 0, "learning_rate": 1e-2}
SIZE = SIZES["v4_tiny"]
DOCUMENTS = 6
TOKENS = 97  # of a document: beyond the window, and more compressed keys than an indexer chooses


@pytest.fixture(scope="module")
def run(stack, text, tmp_path_factory):
    """A run of three steps in fp32; ``held.txt`` has the digests of its parameters."""
    v4_hf.needed()
    folder = tmp_path_factory.mktemp("deepseek")
    good(train(stack, folder / "run", text, steps=3, fp32=True, weights=folder / "held.txt", **COMMON))
    return folder


@pytest.fixture(scope="module")
def exported(run):
    done = CliRunner().invoke(verb.app, ["export", str(run / "run"), str(run / "exported")])
    assert done.exit_code == 0 and "v4_tiny after 3 steps" in done.output, done
    return run / "exported"


def digests(path, mtp=True):
    """The lines of parameters and buffers."""
    lines = [line for line in path.read_text().splitlines() if not line.split()[0].isdigit()]
    return [line for line in lines if mtp or not line.startswith("mtp.")]


def first_tie(scores):
    """The first token whose last chosen and first unchosen key have the same score, 0 of both: an indexer's four heads
    may all have none for a key, and then each model chooses as its sort does. ``scores``: [tokens, keys]."""
    for token, row in enumerate(scores):
        found = row[: (token + 1) // SIZE.attention.csa_ratio].sort(descending=True).values
        if len(found) > SIZE.indexer.topk and found[SIZE.indexer.topk - 1] == found[SIZE.indexer.topk]:
            return token
    return len(scores)


def test_transformers_computes_what_the_network_does(run, exported, deepseek):
    model, told = public.require().AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)
    assert not any(told.values()), told
    model.set_experts_implementation("eager")
    chosen, rng = 0, torch.Generator().manual_seed(1)
    for _ in range(DOCUMENTS):
        ids = torch.randint(0, 257, (TOKENS,), generator=rng)
        with torch.no_grad(), public.watched(model) as seen:
            theirs = model(ids[None]).logits[0]
        until = min(first_tie(seen[f"{layer}.scorer"][2][0]) for layer in (1, 3))
        ours = torch.tensor(deepseek.call(v4_network.logits_of, reading.checkpoint(run / "run"), ids.tolist()))
        assert v4_hf.off(ours[:until], theirs[:until]) < 1e-5 and float(theirs.std()) > 0.1
        chosen += max(until - SIZE.attention.csa_ratio * (SIZE.indexer.topk + 1), 0)
    assert chosen > TOKENS  # tokens for which indexers had something to choose


def test_a_run_begins_with_an_export(run, exported, stack, text, tmp_path):
    done = CliRunner().invoke(verb.app, ["import", str(exported), str(tmp_path / "new")])
    assert done.exit_code == 0 and not done.stderr
    notes = tmp_path / "held.txt"
    good(train(stack, tmp_path / "new", text, steps=3, stop_after=0, fp32=True, weights=notes, **COMMON))
    assert digests(notes) == digests(run / "held.txt") and len(digests(notes)) > 100
    config = tensor_files.config(exported)
    assert (config.step, config.sequence, config.recipe["steps"]) == (3, 64, 3) and config.encoding is not None


def test_a_run_begins_with_what_transformers_saves_and_draws_mtp(run, exported, stack, text, tmp_path):
    public.require().AutoModelForCausalLM.from_pretrained(exported).save_pretrained(tmp_path / "saved")
    weights.bring(tmp_path / "saved", tmp_path / "new")
    notes = tmp_path / "held.txt"
    good(train(stack, tmp_path / "new", text, steps=2, stop_after=0, fp32=True, weights=notes, **COMMON))
    assert digests(notes, mtp=False) == digests(run / "held.txt", mtp=False)
    own, first = ({*digests(path)} - {*digests(path, mtp=False)} for path in (notes, run / "held.txt"))
    assert own and own != first
    good(train(stack, tmp_path / "new", text, steps=2, fp32=True, **COMMON))
    assert len(steps(tmp_path / "new")) == 2 and history.events(history.read(tmp_path / "new"), "imported weights")
    assert steps(tmp_path / "new")[0].loss == pytest.approx(steps(run / "run")[2].loss, rel=0.2)
    assert "mtp.layers.0.e_proj.weight" in reading.shapes(reading.checkpoint(tmp_path / "new"))
