"""Tokenizers: bytes, and a small BPE file trained here."""

import json

import numpy as np
import pytest

from model.data.errors import DataError
from model.data.source.tokenizers import ByteTokenizer, load

TEXT = "def naïve(x):\n    return '日本' + x  # ünd\n"


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    """A byte-level BPE file of 300 tokens that also asks for truncation, as files in the wild do."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install -e .[data]")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<eod>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT] * 3, trainer)
    made.enable_truncation(4)
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    made.save(str(path))
    return path


def test_bytes_are_their_own_ids():
    tokenizer = ByteTokenizer()
    encoded = tokenizer.encode(TEXT.encode())
    assert encoded.ids.tolist() == list(TEXT.encode())
    assert encoded.ends.tolist() == list(range(len(TEXT.encode())))
    assert tokenizer.description.vocab_size == 257 and tokenizer.description.eod == 256


def test_bpe_round_trip_without_truncation(bpe):
    tokenizer = load(f"hf:{bpe}", "<eod>")
    encoded = tokenizer.encode(TEXT.encode())
    library = pytest.importorskip("tokenizers")
    assert library.Tokenizer.from_file(str(bpe)).decode(encoded.ids.tolist()) == TEXT
    known = json.loads(bpe.read_text())["model"]["vocab"].values()
    assert encoded.ids.size > 4 and tokenizer.description.vocab_size == 1 + max(known)
    assert len(tokenizer.description.sha256) == 64


def test_bpe_ends_are_the_last_bytes(bpe):
    """Every token's text ends where ``ends`` says; a character split over tokens ends them all at its last byte."""
    pieces = json.loads(bpe.read_text())["model"]["vocab"]
    spelled = {number: piece for piece, number in pieces.items()}
    text = "def return x\n    return (x)"
    encoded = load(f"hf:{bpe}", "<eod>").encode(text.encode())
    lengths = [len(spelled[i]) for i in encoded.ids.tolist()]
    assert encoded.ends.tolist() == (np.cumsum(lengths) - 1).tolist()
    split = load(f"hf:{bpe}", "<eod>").encode("a語b".encode())
    assert split.ends[0] == 0 and set(split.ends[1:-1].tolist()) == {3} and split.ends[-1] == 4


def test_text_that_spells_eod_is_text(bpe):
    tokenizer = load(f"hf:{bpe}", "<eod>")
    assert tokenizer.description.eod not in tokenizer.encode(b"x <eod> y").ids


def test_empty_text(bpe):
    for tokenizer in (ByteTokenizer(), load(f"hf:{bpe}", "<eod>")):
        assert tokenizer.encode(b"").ids.size == tokenizer.encode(b"").ends.size == 0


def test_refusals(bpe, tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    for spec, eod, named, remedy in [
        ("word", None, "--tokenizer word", "--tokenizer byte"),
        ("hf:", None, "--tokenizer hf:", "--tokenizer byte"),
        (f"hf:{tmp_path / 'absent.json'}", "<eod>", "absent.json", "--tokenizer hf:"),
        (f"hf:{broken}", "<eod>", "broken.json", "name the tokenizer.json"),
        (f"hf:{bpe}", "<nowhere>", "'<nowhere>'", "--eod"),
        (f"hf:{bpe}", None, "None", "--eod"),
    ]:
        with pytest.raises(DataError) as caught:
            load(spec, eod)
        assert named in caught.value.what and (caught.value.remedy or "").startswith(remedy)
    with pytest.raises(DataError, match=r"byte 1$"):
        load(f"hf:{bpe}", "<eod>").encode(b"a\xff")
