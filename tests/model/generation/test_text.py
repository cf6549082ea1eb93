"""Text in tokens with the columns that the data have, prompt and continuation alike."""

import numpy as np
import pytest

from model.data.columns.structure import token_columns
from model.data.source.tokenizers import load
from model.families.sizes import SIZES
from model.generation.text import Text
from patchlane.base.errors import PatchlaneError

SIZE = SIZES["nam56r_tiny"]
PROMPT, REST = "def naïve(x):", "\n    if x: return '日本' + x  # ünd 語\nfor naïve in (x):\n"


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    """A byte-level tokenizer's file whose tokens split characters."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install -e .[data]")
    made, level = tokenizers.Tokenizer(tokenizers.models.BPE()), tokenizers.pre_tokenizers.ByteLevel
    made.pre_tokenizer, made.decoder = level(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<eod>"], initial_alphabet=level.alphabet(), show_progress=False
    )
    made.train_from_iterator([PROMPT + "\n    if x: return 'x' + x"] * 3, trainer)
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    made.save(str(path))
    return f"hf:{path}"


def tokenizer(kind, request):
    return load("byte") if kind == "byte" else load(request.getfixturevalue("bpe"), "<eod>")


@pytest.mark.parametrize("language", ["python", "text"])
@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_tokens_written_are_those_of_the_whole_text(kind, language, request):
    reader = tokenizer(kind, request)
    whole, ahead = reader.encode((PROMPT + REST).encode()), reader.encode(PROMPT.encode())
    assert whole.ids[: len(ahead.ids)].tolist() == ahead.ids.tolist()
    columns = token_columns((PROMPT + REST).encode(), whole.ends, language)
    text = Text(PROMPT.encode(), reader, SIZE, ("structure", "dep_level"), language)
    pieces = [text.write(token) for token in whole.ids[len(ahead.ids) :].tolist()]
    assert b"".join(piece for piece, _ in pieces).decode() == REST
    assert kind == "byte" or b"" in [piece for piece, _ in pieces]  # a token that is part of a character
    for name in SIZE.structure.fields:
        found = np.concatenate([text.fields[name], *(fields[name] for _, fields in pieces)])
        assert found.tolist() == columns[name].tolist(), name


def test_a_model_of_data_without_columns_gets_none():
    text = Text(b"x", load("byte"), SIZE, (), "text")
    assert text.fields is None and text.write(65) == (b"A", None)


def test_a_prompt_of_no_token_is_refused():
    with pytest.raises(PatchlaneError) as refused:
        Text(b"", load("byte"), SIZE, (), "text")
    assert "--prompt" in refused.value.remedy
