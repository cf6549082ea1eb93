"""Building: split, end of document, alignment, cache by content, all or nothing; and the command line."""

import gzip
import json
import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from data_kit import BYTES, documents, make_dataset, write_corpus

from model.data.build import build, build_digest
from model.data.columns.lexer import KEYWORD
from model.data.encode import split_of
from model.data.errors import DataError
from model.data.source.corpus import StandardLibrary
from model.data.source.readers import JsonLines, ParquetText, ParquetTokens, TextFiles
from model.data.source.tokenizers import load
from model.data.stored.dataset import RECORD, Dataset, damaged
from patchlane.base.files import json_sha256
from reproducers.record.schema import ROOT

EOD = 256


def command(*args, **environment):
    return subprocess.run(
        [sys.executable, "-m", "model.data", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "120", **environment},
    )


def test_every_document_is_there_once_and_ends_with_eod(tmp_path):
    dataset = make_dataset(tmp_path)
    built = Counter(tuple(d) for split in ("train", "valid") for d in documents(dataset, split))
    files = sorted((tmp_path / "set-corpus").iterdir())
    assert built == Counter((*path.read_bytes(), EOD) for path in files)
    assert all(d.count(EOD) == 1 for d in built)
    record = dataset.record
    assert record.splits["train"].documents + record.splits["valid"].documents == len(files) == record.corpus.files


def test_held_out_split_is_disjoint_and_stable_when_documents_are_added(tmp_path):
    before = make_dataset(tmp_path, "before")
    write_corpus(tmp_path / "after-corpus", seed=1)
    after = make_dataset(tmp_path, "after")
    for split in ("train", "valid"):
        assert {*map(tuple, documents(before, split))} < {*map(tuple, documents(after, split))}
    assert not {*map(tuple, documents(after, "train"))} & {*map(tuple, documents(after, "valid"))}


def test_the_split_takes_its_share():
    digests = [number.to_bytes(8, "big") + bytes(24) for number in range(0, 2**64, 2**64 // 1000)]
    for percent in (0.0, 2.0, 50.0):
        assert abs(sum(split_of(d, percent) == "valid" for d in digests) - 10 * percent) <= 1


def test_columns_are_aligned_with_tokens(tmp_path):
    dataset = make_dataset(tmp_path)
    tokens, column = dataset.tokens("train"), dataset.column("train", "structure")
    assert column.bounds.tolist() == tokens.bounds.tolist()
    seen = 0
    for number in range(len(tokens)):
        text, classes = tokens[number][:-1].astype("uint8").tobytes(), column[number]
        assert classes[-1] == 0  # EOD
        at = -1
        while (at := text.find(b" def ", at + 1)) >= 0 and b"'" not in text[:at] and b"#" not in text[:at]:
            assert classes[at + 3] == KEYWORD
            seen += 1
    assert seen > 10


def test_unigram_entropy_is_of_each_split(tmp_path):
    dataset = make_dataset(tmp_path)
    for split in ("train", "valid"):
        counts = Counter(t for d in documents(dataset, split) for t in d)
        total = sum(counts.values())
        expected = -sum(n / total * math.log(n / total) for n in counts.values())
        assert dataset.record.splits[split].unigram_entropy == pytest.approx(expected, rel=1e-12)
        assert dataset.record.splits[split].tokens == total


def test_workers_do_not_change_the_result(tmp_path):
    corpus = TextFiles([write_corpus(tmp_path / "c")])
    one = build(corpus, BYTES, tmp_path / "one").record
    two = build(corpus, BYTES, tmp_path / "two", workers=2).record
    assert one == two and one.digest == two.digest


def test_same_inputs_are_reused_and_others_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATCHLANE_STORE", str(tmp_path / "store"))
    corpus = TextFiles([write_corpus(tmp_path / "c")])
    worked = []
    first, again = build(corpus, BYTES), build(corpus, BYTES, progress=worked.append)
    assert not worked
    assert (first.reused, again.reused) == (False, True) and first.record == again.record
    other = build(corpus, replace(BYTES, valid_percent=10))
    assert not other.reused and other.folder != first.folder
    assert first.folder.parent == other.folder.parent == tmp_path / "store" / "data"
    with pytest.raises(DataError) as caught:
        build(corpus, replace(BYTES, valid_percent=10), first.folder)
    assert f"rm -r {first.folder}" in caught.value.remedy
    write_corpus(tmp_path / "c", seed=2)
    assert build(TextFiles([tmp_path / "c"]), BYTES).folder not in (first.folder, other.folder)


def test_two_builds_at_once_make_one_dataset(tmp_path):
    corpus, rivals = TextFiles([write_corpus(tmp_path / "c")]), []

    def overtake(size):
        if not rivals:
            rivals.append(None)
            rivals.append(build(corpus, BYTES, tmp_path / "out"))

    slower = build(corpus, BYTES, tmp_path / "out", progress=overtake)
    assert slower.reused and not rivals[1].reused and slower.record == rivals[1].record
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "out"]


def test_a_corpus_without_training_text_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    for percent in (0, 20, 100):
        with pytest.raises(DataError, match="empty") as caught:
            build(TextFiles([tmp_path / "empty.txt"]), replace(BYTES, valid_percent=percent), tmp_path / "out")
        assert "--valid-percent" not in caught.value.remedy
    (tmp_path / "one.txt").write_text("one")
    with pytest.raises(DataError, match="training split") as caught:
        build(TextFiles([tmp_path / "one.txt"]), replace(BYTES, valid_percent=99.999), tmp_path / "out")
    assert caught.value.remedy.startswith("--valid-percent 0 ")


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    corpus = TextFiles([write_corpus(tmp_path / "c")])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("keep")
    with pytest.raises(DataError, match=str(tmp_path / "mine")):
        build(corpus, BYTES, tmp_path / "mine")
    assert (tmp_path / "mine" / "notes").read_text() == "keep"


def test_a_failed_build_leaves_nothing(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n' * 50 + "{\n")
    with pytest.raises(DataError, match=r"x\.jsonl:51"):
        build(JsonLines([path]), BYTES, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.jsonl"]


def test_what_a_killed_build_left_is_removed(tmp_path):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    stale = tmp_path / f".tmp-{dead.stdout.strip()}-data-x"
    alive = tmp_path / f".tmp-{os.getpid()}-data-x"
    stale.mkdir()
    alive.mkdir()
    make_dataset(tmp_path)
    assert not stale.exists() and alive.exists()


def test_a_corpus_that_changes_meanwhile_is_refused(tmp_path):
    corpus = TextFiles([write_corpus(tmp_path / "c")])

    def meddle(size):
        corpus.files[0][1].write_text("changed")

    with pytest.raises(DataError, match="changed"):
        build(corpus, BYTES, tmp_path / "out", progress=meddle)
    assert not (tmp_path / "out").exists()


def test_parquet_tokens_get_one_eod_and_the_vocabulary_is_checked(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e .[data]")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, options = tmp_path / "x.parquet", replace(BYTES, structure=False, valid_percent=0)
    parquet.write_table(pa.table({"tokens": [[1, 2], [3, EOD], []]}), path)
    dataset = Dataset(build(ParquetTokens([path]), options, tmp_path / "out").folder)
    assert documents(dataset, "train") == [[1, 2, EOD], [3, EOD]] and documents(dataset, "valid") == []
    with pytest.raises(DataError, match="'structure'"):
        dataset.column("train", "structure")
    parquet.write_table(pa.table({"tokens": [[1, 257]]}), path)
    for workers in (1, 2):
        with pytest.raises(DataError, match=r"x\.parquet:1: .*\b257\b.*\b256\b") as caught:
            build(ParquetTokens([path]), options, tmp_path / "other", workers=workers)
        assert "--tokenizer hf:FILE" in caught.value.remedy


@pytest.fixture
def rows(tmp_path):
    """Builds a dataset of a Parquet shard with these rows of ids."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e .[data]")
    parquet = pytest.importorskip("pyarrow.parquet")

    def built(rows, percent):
        parquet.write_table(pa.table({"tokens": rows}), tmp_path / "x.parquet")
        options = replace(BYTES, structure=False, valid_percent=percent)
        return Dataset(build(ParquetTokens([tmp_path / "x.parquet"]), options, tmp_path / "out").folder)

    return built


def test_a_row_with_its_eod_and_one_without_are_in_the_same_split(rows):
    bare = [[number, number // 7, 3] for number in range(1, 200)]
    dataset = rows([*bare, *([*row, EOD] for row in bare)], 40)
    found = [Counter(map(tuple, documents(dataset, split))) for split in ("train", "valid")]
    assert set(found[0]).isdisjoint(found[1]) and all(set(counts.values()) == {2} for counts in found)


def test_an_eod_inside_a_row_ends_a_document(rows):
    dataset = rows([[1, 2, EOD, 3, 4, EOD], [EOD, EOD, 5], [EOD]], 0)
    assert documents(dataset, "train") == [[1, 2, EOD], [3, 4, EOD], [5, EOD]]


def test_only_rows_of_tokens_are_built_by_a_newer_rule(tmp_path):
    """A dataset of another source that was built before keeps its digest, and so the runs on it."""
    made = [kind([tmp_path], "text") for kind in (JsonLines, ParquetText, ParquetTokens)]
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "x.parquet").write_bytes(b"")
    tokenizer = load("byte").description
    options = {"valid_percent": BYTES.valid_percent, "structure": BYTES.structure}
    for corpus, version in zip(made, (1, 1, 2), strict=True):
        described = {"corpus": corpus.description.model_dump(mode="json"), "tokenizer": tokenizer.model_dump()}
        assert build_digest(corpus, BYTES, tokenizer) == json_sha256({"format": version, **described, **options})


def test_the_same_texts_give_the_same_documents_from_each_source(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e .[data]")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = [path.read_text() for path in sorted(write_corpus(tmp_path / "c").iterdir())]
    raw = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    (tmp_path / "x.jsonl").write_bytes(raw)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(raw))
    (tmp_path / "x.jsonl.zst").write_bytes(pa.compress(raw, codec="zstd", asbytes=True))
    parquet.write_table(pa.table({"text": texts}), tmp_path / "x.parquet")
    found = []
    for number, path in enumerate(sorted(tmp_path.glob("x.*"))):
        corpus = (ParquetText if path.suffix == ".parquet" else JsonLines)([path])
        dataset = Dataset(build(corpus, BYTES, tmp_path / f"out{number}").folder)
        columns = [dataset.column("train", field).tokens.tolist() for field in dataset.record.fields]
        found.append((documents(dataset, "train"), documents(dataset, "valid"), columns))
    assert len(found) == 4 and found[1:] == found[:1] * 3


@pytest.mark.parametrize("percent", [-1, 100.5])
def test_a_senseless_share_is_refused(tmp_path, percent):
    with pytest.raises(DataError, match="--valid-percent"):
        build(TextFiles([write_corpus(tmp_path / "c")]), replace(BYTES, valid_percent=percent), tmp_path / "out")


def test_damage_is_found(tmp_path):
    dataset = make_dataset(tmp_path)
    assert damaged(dataset.folder, dataset.record) == []
    path = dataset.folder / "train.bin"
    raw = bytearray(path.read_bytes())
    raw[10] ^= 1
    path.write_bytes(raw)
    assert damaged(dataset.folder, dataset.record) == ["train.bin"]
    shown = command("show", dataset.folder, "--verify")
    assert shown.returncode == 1 and "train.bin" in shown.stderr and "fix: rm -r" in shown.stderr
    path.write_bytes(raw[:-1])
    with pytest.raises(DataError, match=rf"train\.bin has {len(raw) - 1} bytes, not {len(raw)}\b"):
        Dataset(dataset.folder)
    (dataset.folder / RECORD).write_text(json.dumps({"schema_version": 2}))
    with pytest.raises(DataError, match=r"dataset\.json: schema_version"):
        Dataset(dataset.folder)


def test_command_line(tmp_path):
    corpus = write_corpus(tmp_path / "c")
    arguments = ("build", "--source", "text", "--valid-percent", "20", "--out", tmp_path / "out", corpus)
    first, again = command(*arguments), command(*arguments)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith(f"built: {tmp_path / 'out'}") and again.stdout.startswith("reused")
    shown = command("show", tmp_path / "out", "--verify")
    assert shown.returncode == 0 and "24 of 24 files" in shown.stdout
    assert Dataset(tmp_path / "out").record.digest in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "--source", "text", "nowhere"], "nowhere: no such file"),
        (["build", "file.py"], "--source stdlib"),
        (["build", "--key", "x"], "fix: leave --key out"),
        (["build", "--source", "jsonl", "--split", "x", "p"], "fix: leave --split out"),
        (["build", "--source", "parquet", "--structure", "p"], "fix: leave --structure out"),
        (["build", "--tokenizer", "word"], "--tokenizer word"),
        (["show", "nowhere"], "fix: python -m model.data build --out nowhere"),
        (["build", "--out", "/dev/null/x"], "/dev/null: "),
    ],
)
def test_bad_usage_ends_with_one_message_and_no_traceback(arguments, message):
    done = command(*arguments)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")


def test_the_start_imports_no_heavy_library():
    code = "import sys, model.data.__main__; print(*[m for m in ('torch', 'numpy', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == ""


def test_the_standard_library_builds_with_structure(tmp_path):
    """A slice of it: the package ``json`` and what lies beside it in one folder."""
    root = StandardLibrary().root / "json"
    built = build(StandardLibrary(root), BYTES, tmp_path / "out")
    assert built.record.corpus.source == "stdlib" and built.record.corpus.python
    assert built.record.splits["train"].tokens > 10_000
