"""Corpora: what they read, in what order, what they record, and how bad input is refused."""

import gzip
import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from model.data.errors import DataError
from model.data.source.corpus import StandardLibrary
from model.data.source.readers import BLANK_LINE, JsonLines, ParquetText, ParquetTokens, TextFiles


def texts(corpus):
    return [document.text.decode() for document in corpus]


def lines(path, *values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def shard(path, rows, kind="int32", name="tokens"):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e .[data]")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({name: pa.array(rows, pa.list_(getattr(pa, kind)()))}), path)
    return path


def test_the_standard_library_is_sorted_python_without_packages():
    corpus = StandardLibrary()
    names = [name for name, _ in corpus.files]
    assert names == sorted(names) and len(names) > 500 and "heapq.py" in names
    assert not [name for name in names if "site-packages" in name or "lib2to3/tests/data" in name]
    described = corpus.description
    assert described.python == platform.python_version() and described.files == len(names)
    assert described.bytes == sum(path.stat().st_size for _, path in corpus.files)
    first = next(iter(corpus))
    assert first.language == "python" and first.name == names[0]


def test_undecodable_sources_are_left_out_and_counted(tmp_path):
    (tmp_path / "ok.py").write_text("x = 'é'\n", encoding="utf-8")
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "bad_coding.py").write_text("y\n")
    corpus = StandardLibrary(tmp_path)
    assert [name for name, _ in corpus.files] == ["ok.py"] and corpus.description.skipped == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=str(tmp_path / "empty")):
        _ = StandardLibrary(tmp_path / "empty").description


def test_the_digest_is_of_names_and_contents_not_of_the_place(tmp_path):
    digests = []
    for folder, name, text in (("a", "x.txt", "1"), ("b", "x.txt", "1"), ("c", "y.txt", "1"), ("d", "x.txt", "2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
        digests.append(TextFiles([tmp_path / folder]).description.sha256)
    assert digests[0] == digests[1] and len(set(digests)) == 3
    assert digests[0] == hashlib.sha256(b"x.txt\0" + b"1\0" + b"1").hexdigest()


def test_text_files_one_document_each(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"two\r\nlines\n")
    (tmp_path / "a.py").write_text("one\n")
    (tmp_path / ".hidden").write_text("no\n")
    (tmp_path / "z.bin").write_bytes(b"\xff")
    corpus = TextFiles([tmp_path])
    assert texts(corpus) == ["one\n", "two\r\nlines\n"] and corpus.description.skipped == 1
    assert [document.language for document in corpus] == ["python", "text"]


def test_text_split_at_blank_lines_and_by_pattern(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("a\nb\n \nc\n\n\nd")
    assert [text for text in texts(TextFiles([path], BLANK_LINE)) if text] == ["a\nb\n", "c\n", "d"]
    path.write_text("a\n===\nb ===\n")
    assert texts(TextFiles([path], "=+")) == ["a\n", "b ===\n"]
    with pytest.raises(DataError, match="--split"):
        TextFiles([path], "(")


def test_json_lines(tmp_path):
    path = lines(tmp_path / "x.jsonl", {"text": "a", "body": "c"}, {"text": "b\n", "body": "d"})
    path.write_text(path.read_text().replace("\n", "\n\n", 1))
    assert texts(JsonLines([path])) == ["a", "b\n"]
    assert texts(JsonLines([path], "body", "python")) == ["c", "d"]
    assert [d.name for d in JsonLines([path])] == ["x.jsonl:1", "x.jsonl:3"]


def mended(error, folder):
    """The file that the remedy's command makes in ``folder``."""
    there = {*folder.iterdir()}
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-c", error.value.remedy], env={**os.environ, "PATH": search}, cwd=folder, check=True)
    [made] = {*folder.iterdir()} - there
    return made


LONG = b'{"text": "a"}\n' * 2000  # more than is read at a time


@pytest.mark.parametrize(
    ("content", "message", "expected"),
    [
        (b'{"text": "a"}\n{"text": \n', r"x\.jsonl:2: ", ["a"]),
        (b'{"body": "a"}\n', r"x\.jsonl:1: .*'text'", None),
        (b'{"text": "a"}\n{"body": "b"}\n', r"x\.jsonl:2: .*'text'", ["a"]),
        (b'{"text": 3}\n{"text": "b"}\n', r"x\.jsonl:1: .*'text'", ["b"]),
        (b'[{"text": "a"}, {"text": "b"}]\n', r"x\.jsonl:1: .*'text'", ["a", "b"]),
        (b'[\n{"text": "a"},\n{"text": "b"}\n]\n', r"x\.jsonl:1: ", ["a", "b"]),
        (b'{"text":\n "a"\n}\n', r"x\.jsonl:1: ", ["a"]),
        (b'{"text": "\\ud800"}\n{"text": "b"}\n', r"x\.jsonl:1: 'text'", ["b"]),
        (LONG + b'{"text": "\xe9"}\n' + LONG, r"x\.jsonl:2001: not UTF-8", ["a"] * 2000 + ["é"] + ["a"] * 2000),
        ('{"text": "é"}\n'.encode("utf-16"), r"x\.jsonl:1: not UTF-8", ["é"]),
    ],
)
@pytest.mark.parametrize("end", ["", ".gz"])
def test_bad_json_lines_are_refused_by_file_and_line_with_the_command_that_mends_them(
    tmp_path, content, message, expected, end
):
    path = tmp_path / f"it's x.jsonl{end}"
    path.write_bytes(gzip.compress(content) if end else content)
    with pytest.raises(DataError, match=message.replace("jsonl", "jsonl" + end)) as caught:
        list(JsonLines([path]))
    if expected is None:
        assert caught.value.remedy == "--key body"
    else:
        assert texts(JsonLines([mended(caught, tmp_path)])) == expected


def test_a_byte_order_mark_is_not_of_the_json(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n{"text": "\xef\xbb\xbfb"}\n')
    assert texts(JsonLines([path])) == ["a", "\ufeffb"]


def test_text_that_is_not_utf8_is_refused_by_its_line(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"a\n" * 20_000 + b"\xe9\n" + b"a\n" * 20_000)
    with pytest.raises(DataError, match=r"x\.txt:20001: ") as caught:
        list(TextFiles([path]))
    assert texts(TextFiles([mended(caught, tmp_path)])) == ["a\n" * 20_000 + "é\n" + "a\n" * 20_000]


@pytest.mark.parametrize("kind", ["uint16", "int64"])
def test_parquet_shards(tmp_path, kind):
    rows = [[1, 2, 3], [], list(range(2000))]
    shard(tmp_path / "0.parquet", rows, kind)
    shard(tmp_path / "1.parquet", [[7]] * 2000, kind)
    read = [document.tokens.tolist() for document in ParquetTokens([tmp_path])]
    assert read == rows + [[7]] * 2000


def test_bad_parquet_is_refused(tmp_path):
    good = shard(tmp_path / "good.parquet", [[1], None])
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    cases = [
        (tmp_path / "bad.parquet", "tokens", r"bad\.parquet: "),
        (good, "ids", r"'ids'.*\['tokens'\]"),
        (good, "tokens", r"good\.parquet: row 2"),
        (shard(tmp_path / "s.parquet", [["a"]], "string"), "tokens", r"s\.parquet: row 1"),
    ]
    for path, key, message in cases:
        with pytest.raises(DataError, match=message):
            list(ParquetTokens([path], key))


def test_no_or_absent_paths_are_refused(tmp_path):
    with pytest.raises(DataError, match="--source text"):
        TextFiles([])
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(DataError, match=str(path)) as caught:
            _ = TextFiles([path]).description
        assert caught.value.remedy
    with pytest.raises(DataError) as caught:
        _ = TextFiles([tmp_path / "absent" / "inner"]).description
    assert caught.value.remedy.startswith(f"ls {tmp_path},")


def packed(path, raw):
    """``raw`` compressed as the path's suffix says."""
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(raw))
    else:
        pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e .[data]")
        path.write_bytes(pa.compress(raw, codec="zstd", asbytes=True))
    return path


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst", "x.json.zst"])
def test_compressed_json_lines_are_read_alone_and_in_folders(tmp_path, name):
    packed(tmp_path / name, '{"text": "é"}\n{"text": "b"}\n'.encode())
    (tmp_path / "other.gz").write_bytes(b"no lines")
    for corpus in (JsonLines([tmp_path]), JsonLines([tmp_path / name])):
        assert texts(corpus) == ["é", "b"] and corpus.description.skipped == 0


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst"])
@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: b"plain" + raw, lambda raw: b"{}"])
def test_a_broken_compressed_file_is_refused_by_name(tmp_path, name, damage):
    path = packed(tmp_path / name, b'{"text": "a"}\n' * 5 + hashlib.sha512(b"").hexdigest().encode())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=name) as caught:
        list(JsonLines([path]))
    assert caught.value.remedy


def test_parquet_text(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e .[data]")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = ["a", "", "日本\0"] * 1000
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        parquet.write_table(pa.table({"body": pa.array(rows, kind)}), tmp_path / "x.parquet")
        corpus = ParquetText([tmp_path], "body", "python")
        assert texts(corpus) == rows
        assert next(iter(corpus)).language == "python"
    with pytest.raises(DataError, match=r"'text'.*\['body'\]"):
        list(ParquetText([tmp_path]))
    parquet.write_table(pa.table({"text": ["a", None]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet: row 2") as caught:
        list(ParquetText([tmp_path]))
    assert texts(ParquetText([mended(caught, tmp_path)])) == ["a"]
    with pytest.raises(DataError, match=r"x\.parquet: row 1") as caught:
        list(ParquetTokens([tmp_path / "x.parquet"], "text"))
    assert caught.value.remedy == "--source parquet-text --key text"


@pytest.mark.parametrize(
    ("columns", "remedy"),
    [
        ({}, "tokens is double"),
        ({"ids": [[1], [2]], "body": ["a", "b"]}, "--source parquet --key ids"),
        ({"body": ["a", "b"]}, "--source parquet-text --key body"),
    ],
)
def test_a_column_of_no_token_ids_is_refused_with_one_that_can_be_read(tmp_path, columns, remedy):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e .[data]")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, tokens in {"flat": [1.5, 2.0], "lists": [[1.5], [2.0]]}.items():
        parquet.write_table(pa.table({"tokens": tokens} | columns), tmp_path / f"{name}.parquet")
        with pytest.raises(DataError, match=r"row 1 is not a list of token ids") as caught:
            list(ParquetTokens([tmp_path / f"{name}.parquet"]))
        assert remedy in caught.value.remedy.replace("list<element: double>", "double")
    with pytest.raises(DataError, match=r"'none'") as caught:
        list(ParquetTokens([tmp_path / "flat.parquet"], "none"))
    assert remedy in caught.value.remedy


def test_a_parquet_file_whose_pages_are_damaged_is_refused_by_name(tmp_path):
    path = shard(tmp_path / "x.parquet", [[number] for number in range(5000)])
    raw = bytearray(path.read_bytes())
    raw[4:2000] = bytes(1996)
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"x\.parquet: "):
        list(ParquetTokens([path]))
