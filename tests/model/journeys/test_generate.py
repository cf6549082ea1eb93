"""Text from a run of two expert-parallel ranks: by its checkpoint or exported, drawn or not, and what is refused."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from precision import FP32
from train_kit import good, train
from typer.testing import CliRunner

from model import generate as verb
from model.data.columns.structure import token_columns
from model.data.source.tokenizers import ByteTokenizer
from model.data.stored.dataset import Dataset
from model.families.sizes import SIZES
from model.generation import loading
from model.saved import layouts, reading, tensor_files, weights, writing
from model.saved.opened import opened
from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit

pytestmark = pytest.mark.upstream
SIZE = SIZES["nam56r_tiny"]
PROMPT, TOKENS = "def naïve(x):\n", 24
ROUNDING = 1e-4  # of fp32, in logits of order 1
BF16 = 0.05


@pytest.fixture(scope="module")
def run(stack, text, tmp_path_factory):
    """A run of four steps, each rank of which held half of the experts."""
    out = tmp_path_factory.mktemp("generate") / "run"
    good(train(stack, out, text, world=2, ep=2, steps=4, warmup=0, learning_rate=3e-3, fp32=True, evaluate_every=100))
    return out


@pytest.fixture(scope="module")
def exported(run):
    weights.export(run, run.parent / "exported", 2**20)
    return run.parent / "exported"


@pytest.fixture(scope="module")
def greedy(run):
    return said(run)


def said(source, *options, prompt=PROMPT):
    """Standard output of a run that ends well."""
    done = CliRunner().invoke(verb.app, [str(source), "--prompt", prompt, "--tokens", str(TOKENS), *options])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout_bytes


def refused(source, *options, prompt=PROMPT):
    """What a refusal says that mends it."""
    done = CliRunner().invoke(verb.app, [str(source), "--prompt", prompt, *options])
    assert isinstance(done.exception, PatchlaneError), (done.output, done.exception)
    assert done.exception.exit_code is Exit.USAGE and "\n" not in done.exception.what
    return done.exception.remedy


def logits(decoder, content):
    """Of a whole text with its columns as the data have them, [n, vocab] fp32."""
    encoded = ByteTokenizer().encode(content)
    columns = token_columns(content, encoded.ends, "text")
    fields = {name: torch.from_numpy(columns[name].astype(np.int64)) for name in SIZE.structure.fields}
    with torch.inference_mode():
        state = decoder.begin(len(encoded.ids))
        return decoder.logits(decoder(torch.from_numpy(encoded.ids), fields, state)).float()


def test_greedy_text_is_the_model_s_choice_at_each_token(run, greedy):
    assert said(run) == greedy and greedy.startswith(PROMPT.encode())
    written, ahead = greedy[:-1], len(PROMPT.encode())
    found = logits(loading.network(opened(run), None), written)[ahead - 1 : -1, : ByteTokenizer.description.vocab_size]
    taken = found.gather(1, torch.tensor([*written[ahead:]])[:, None])[:, 0]
    assert len(taken) == TOKENS
    assert (found.amax(1) - taken).max() < ROUNDING


def test_draws_repeat_by_their_seed(run):
    options = ["--temperature", "0.9", "--top-k", "200", "--top-p", "0.95"]
    drawn = said(run, *options, "--seed", "1")
    assert drawn == said(run, *options, "--seed", "1") and drawn != said(run, *options, "--seed", "2")


def test_checkpoints_and_exported_weights_give_the_same_text(run, exported, greedy):
    assert said(reading.checkpoint(run)) == said(exported) == greedy
    weights.bring(exported, run.parent / "next")
    assert said(run.parent / "next") == greedy


def test_a_prompt_of_bytes_that_are_no_text_is_read(run):
    assert said(run, prompt="x\udcff").startswith(b"x\xff")


def test_bf16_keeps_what_training_keeps_and_computes_the_same(run):
    wide, half = (loading.network(opened(run), bf16) for bf16 in (False, True))
    kept = {name for name, p in half.named_parameters() if p.dtype is torch.float32}
    trained = {f"decoder.layers.{n - 1}.{name}" for kind, of in FP32.items() for n in SIZE.numbers(kind) for name in of}
    assert kept == {name for name, place in layouts.written(SIZE).items() if place.key in trained}
    assert {p.dtype for name, p in half.named_parameters() if name not in kept} == {torch.bfloat16}
    got, want = (logits(decoder, b"def f(x):\n    return x\n") for decoder in (half, wide))
    assert (got - want).norm() / want.norm() < BF16


@pytest.mark.parametrize(
    "options",
    [["--temperature", "-1"], ["--top-p", "0.5"], ["--temperature", "1", "--top-k", "0"], ["--tokenizer", "x.json"]],
    ids=str,
)
def test_options_that_mean_nothing_are_refused(run, options):
    assert refused(run, *options)


def test_sources_that_are_none_are_refused(run, text, tmp_path):
    assert refused(tmp_path) and refused(tmp_path / "none") and refused(run / "metrics.jsonl")
    assert "--prompt" in refused(run, prompt="")
    assert "model.data build" in refused(run, "--data", str(tmp_path))
    damaged = shutil.copytree(run, tmp_path / "damaged")
    with (reading.checkpoint(damaged) / "__0_0.distcp").open("r+b") as file:
        file.write(b"wrong")
    assert refused(damaged)


def test_weights_of_another_size_are_refused(exported, tmp_path):
    other = shutil.copytree(exported, tmp_path / "other")
    said = json.loads((other / tensor_files.CONFIG).read_text())
    (other / tensor_files.CONFIG).write_text(json.dumps(said | {"size": SIZES["nam56r_siso"].model_dump()}))
    assert refused(other)


def saved(run, folder, *, dataset):
    """A checkpoint of the run's weights that does not say how its text is encoded, as those of old, by its dataset."""
    progress = {"step": 4, "size": SIZE.model_dump(mode="json"), "loader": {"dataset": dataset}}
    return writing.write(folder / "checkpoints" / reading.name(4), dict(opened(run).tensors()), progress)


def test_without_an_encoding_it_asks_for_the_run_s_dataset(run, greedy, text, other_text, tmp_path):
    old = saved(run, tmp_path, dataset=Dataset(text).record.digest)
    assert "--data" in refused(old)
    assert "--data" in refused(old, "--data", str(other_text))
    assert said(old, "--data", str(text)) == greedy


def test_a_dataset_of_another_tokenizer_is_refused(run, greedy, other_text, tmp_path):
    other = shutil.copytree(other_text, tmp_path / "other")
    record = (other / "dataset.json").read_text()
    (other / "dataset.json").write_text(re.sub(r'"vocab_size": \d+', '"vocab_size": 999', record))
    assert said(run, "--data", str(other_text)) == greedy  # bytes as well
    assert "--data" in refused(run, "--data", str(other))
    nothing = saved(run, tmp_path, dataset=Dataset(other).record.digest)
    assert "--data" in refused(nothing, "--data", str(other))


LOADED = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, prompt, tokens, target = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
given = tokenizer(prompt, return_tensors="pt")
written = model.generate(**given, max_new_tokens=int(tokens), do_sample=False)[0]
with torch.no_grad():
    logits = model(written[None, :-1]).logits[0]
torch.save({"logits": logits, "written": written, "text": tokenizer.decode(written, skip_special_tokens=True)}, target)
ours = {name.split(".")[0] for name in sys.modules} & {"model", "patchlane", "reproducers"}
sys.exit(f"{ours} imported" if ours else 0)
"""


def test_transformers_loads_an_export_without_this_project(run, exported, tmp_path):
    pytest.importorskip("transformers")
    env = {"PATH": os.environ["PATH"], "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)}
    language = ["--language", "python"] if opened(run).encoding.language == "python" else []
    arguments = [str(exported), PROMPT, str(TOKENS), str(tmp_path / "found")]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "found")
    content = bytes(found["written"].tolist())
    assert said(run, *language) == content + b"\n" and found["text"].encode() == content
    want = logits(loading.network(opened(run), False), content[:-1])
    assert (found["logits"] - want).abs().max() < 1e-5


def test_an_export_to_a_place_that_cannot_be_written_is_told(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PatchlaneError) as told:
        weights.export(run, tmp_path / "file" / "out")
    assert told.value.exit_code is Exit.USAGE
