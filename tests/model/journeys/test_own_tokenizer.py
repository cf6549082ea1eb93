"""A team's own tokenizer from its corpus to text: no command after the build is told where its file is."""

import hashlib
import json
import shutil

import pytest
from train_kit import good, train
from typer.testing import CliRunner

from model import generate, weights
from model.data import __main__ as data
from model.data.errors import DataError
from model.saved import reading
from model.saved.opened import opened

pytestmark = pytest.mark.upstream
pytest.importorskip("tokenizers")
PROMPT = "def walk(tree):\n"


def ok(app, *arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


@pytest.fixture(scope="module")
def run(stack, tmp_path_factory):
    """A run of two steps whose tokenizer's file is gone since its dataset was built."""
    folder = tmp_path_factory.mktemp("tokenizer")
    source, file = folder / "code", folder / "tok/tokenizer.json"
    source.mkdir()
    for number in range(60):
        lines = "".join(f"    value_{number} = walk(node_{line}, {line})\n" for line in range(30))
        (source / f"{number}.py").write_text(f"def part_{number}(tree):\n{lines}    return value_{number}\n")
    ok(data.app, "tokenizer", "--vocab", 300, "--out", file, "--source", "text", source)
    built = ["--tokenizer", f"hf:{file}", "--eod", "<|endoftext|>", "--out", folder / "data", "--valid-percent", 20]
    ok(data.app, "build", "--source", "text", *built, source)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    shutil.rmtree(file.parent)
    good(train(stack, folder / "run", folder / "data", steps=2, fp32=True, evaluate_every=100))
    return folder / "run", digest


def test_data_checkpoint_export_and_import_have_the_file(run, tmp_path):
    folder, digest = run
    record = json.loads((folder.parent / "data/dataset.json").read_text())
    assert record["files"]["tokenizer.json"]["sha256"] == record["tokenizer"]["sha256"] == digest
    assert hashlib.sha256(opened(folder).tokenizer).hexdigest() == digest
    written = ok(generate.app, folder, "--prompt", PROMPT, "--tokens", 4)
    assert written.startswith(PROMPT)
    ok(weights.app, "export", folder, tmp_path / "out")
    assert hashlib.sha256((tmp_path / "out/tokenizer.json").read_bytes()).hexdigest() == digest
    assert ok(generate.app, tmp_path / "out", "--prompt", PROMPT, "--tokens", 4) == written
    ok(weights.app, "import", tmp_path / "out", tmp_path / "next")
    said = reading.progress(reading.checkpoint(tmp_path / "next"))
    assert hashlib.sha256(reading.tokenizer(said)).hexdigest() == digest


def test_another_file_beside_the_weights_is_refused(run, tmp_path):
    ok(weights.app, "export", run[0], tmp_path / "out")
    file = tmp_path / "out/tokenizer.json"
    file.write_text(file.read_text().replace('"a"', '"á"', 1))
    done = CliRunner().invoke(generate.app, [str(tmp_path / "out"), "--prompt", PROMPT])
    assert isinstance(done.exception, DataError) and run[1] in done.exception.remedy


def test_transformers_gives_the_ids_of_training(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    ok(weights.app, "export", run[0], tmp_path / "out")
    found = opened(run[0])
    ours = found.encoding.open(kept=found.tokenizer)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "out")
    for text in (PROMPT, "naïve €\t<|endoftext|>", "  x\r\n"):
        assert theirs(text)["input_ids"] == ours.encode(text.encode()).ids.tolist()
        assert theirs.decode(theirs(text)["input_ids"]) == text
    assert theirs.eos_token_id == found.encoding.tokenizer.eod
