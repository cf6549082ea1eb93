"""Corpora: what they read, in what order, what they record, and how bad input is refused."""

import gzip
import hashlib
import json
import platform

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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"text": \n', r"x\.jsonl:2: "),
        (b'{"body": "a"}\n', r"x\.jsonl:1: .*'text'"),
        (b'{"text": 3}\n', r"x\.jsonl:1: .*'text'"),
        (b'["text"]\n', r"x\.jsonl:1: .*'text'"),
        (b'{"text": "\\ud800"}\n', r"x\.jsonl:1: 'text'"),
        (b'{"text": "a"}\n\xff\n', r"x\.jsonl: not UTF-8"),
    ],
)
def test_bad_json_lines_are_refused_by_file_and_line(tmp_path, content, message):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(JsonLines([path]))


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
        with pytest.raises(DataError, match=str(path)):
            _ = TextFiles([path]).description


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
    assert "--source parquet " in caught.value.remedy
    with pytest.raises(DataError, match=r"x\.parquet: row 1") as caught:
        list(ParquetTokens([tmp_path], "text"))
    assert "--source parquet-text " in caught.value.remedy


def test_a_parquet_file_whose_pages_are_damaged_is_refused_by_name(tmp_path):
    path = shard(tmp_path / "x.parquet", [[number] for number in range(5000)])
    raw = bytearray(path.read_bytes())
    raw[4:2000] = bytes(1996)
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"x\.parquet: "):
        list(ParquetTokens([path]))
