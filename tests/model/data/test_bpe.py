"""A tokenizer from a corpus: of all bytes, the same each time, blind to what is held out."""

import hashlib
import json

import pytest

from model.data import bpe
from model.data.encode import split_of
from model.data.errors import DataError
from model.data.source.corpus import Document
from model.data.source.readers import TextFiles
from model.data.source.tokenizers import EOD, load

pytest.importorskip("tokenizers")
TEXT = "def walk(tree):\n    for node in tree:\n        yield node\n"


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.py").write_text(TEXT + f"value_{number} = {number}\n")
    return TextFiles([folder], None)


def test_any_bytes_have_tokens_and_come_back(corpus, tmp_path):
    made = bpe.train(corpus, 300, tmp_path / "new/tokenizer.json", 0)
    assert (made.vocab_size, made.eod, made.eod_token, made.kind) == (300, 0, EOD, "hf")
    tokenizer = load(f"hf:{tmp_path / 'new/tokenizer.json'}", EOD)
    assert tokenizer.description == made
    for text in (TEXT, "naïve €\t\r\n\x00 日本", EOD):
        ids = tokenizer.encode(text.encode()).ids.tolist()
        write = tokenizer.writer([])
        assert b"".join(write(one) for one in ids).decode() == text and made.eod not in ids
    assert len(tokenizer.encode(TEXT.encode()).ids) < len(TEXT) / 2


def test_the_same_corpus_gives_the_same_file(corpus, tmp_path):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in files:
        bpe.train(corpus, 300, file, 0)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_documents_that_are_held_out_are_not_read(tmp_path):
    texts = [f"{letter * 40}\n".encode() for letter in "abcdefghijklmnopqrstuvwxyz"]
    held = [text for text in texts if split_of(hashlib.sha256(text).digest(), 50) == "valid"]
    assert 0 < len(held) < len(texts)
    bpe.train([Document(name=str(n), text=text) for n, text in enumerate(texts)], 290, tmp_path / "t.json", 50)
    vocab = json.loads((tmp_path / "t.json").read_text())["model"]["vocab"]
    assert {text[:1].decode() * 2 for text in texts} - vocab.keys() == {text[:1].decode() * 2 for text in held}


def test_a_corpus_with_fewer_pairs_gives_fewer_ids(tmp_path):
    made = bpe.train([Document(name="x", text=b"abab")], 1000, tmp_path / "t.json", 0)
    assert 257 < made.vocab_size < 270


@pytest.mark.parametrize("vocab", [0, 256, (1 << 18) - 1])
def test_a_size_that_no_model_takes_is_refused(corpus, tmp_path, vocab):
    with pytest.raises(DataError):
        bpe.train(corpus, vocab, tmp_path / "t.json", 0)
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    "documents",
    [
        [],
        [Document(name="x", text=b"")],
        [Document(name="x", text=b"\xff")],
        [Document(name="x", text=b"", tokens=[1])],
    ],
    ids=["none", "empty", "no text", "ids"],
)
def test_a_corpus_of_no_text_leaves_no_file(tmp_path, documents):
    with pytest.raises(DataError):
        bpe.train(documents, 300, tmp_path / "t.json", 0)
    assert not (tmp_path / "t.json").exists()


def test_a_file_that_is_there_is_left_as_it_is(corpus, tmp_path):
    (tmp_path / "t.json").write_text("mine")
    with pytest.raises(DataError):
        bpe.train(corpus, 300, tmp_path / "t.json", 0)
    assert (tmp_path / "t.json").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_told(corpus, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError):
        bpe.train(corpus, 300, tmp_path / "file" / "t.json", 0)
