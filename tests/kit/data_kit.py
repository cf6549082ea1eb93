"""A small corpus of text files, and datasets built from it."""

import random
from dataclasses import replace

from model.data.build import build
from model.data.encode import EncoderOptions
from model.data.source.readers import TextFiles
from model.data.stored.dataset import Dataset

WORDS = ["def", "return", "if", "x", "y", "foo_bar", "12", "3.5", "'text'", "(", ")", ":", "# note\n", "\n", "\n "]
BYTES = EncoderOptions(tokenizer="byte", eod_token=None, valid_percent=20, structure=True)
PLAIN = replace(BYTES, structure=False, valid_percent=0)


def write_corpus(folder, documents=60, seed=0, longest=400):
    """Random Python-like files of 1 to ``longest`` characters; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    for number in range(documents):
        text = "".join(draw.choice(WORDS) + " " for _ in range(longest))[: draw.randint(1, longest)]
        (folder / f"d{seed}_{number:03d}.py").write_text(text)
    return folder


def make_dataset(tmp_path, name="set", options=BYTES, **corpus):
    folder = write_corpus(tmp_path / f"{name}-corpus", **corpus)
    return Dataset(build(TextFiles([folder]), options, tmp_path / name).folder)


def documents(dataset, split):
    tokens = dataset.tokens(split)
    return [tokens[d].tolist() for d in range(len(tokens))]
