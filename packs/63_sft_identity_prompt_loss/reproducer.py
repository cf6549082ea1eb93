# /// script
# requires-python = ">=3.12"
# dependencies = [
#     "megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging", "transformers", "hypothesis",
# ]
# ///
"""Under the prompt format "identity" Megatron's SFT tokenizer makes targets of system, user and tool messages.

``SFTTokenizer.tokenize_conversation(..., return_target=True)`` gives tokens and targets; a message that the model does
not write has the target -100, of which ``SFTDataset`` makes a loss mask. "identity" takes conversations that are
decorated already and joins their contents; of its targets none is -100, so that a run trains on its prompts.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from reproducers import probe


def minimal() -> None:
    """A conversation of a word each: the model writes the last."""
    import tempfile

    from megatron.core.tokenizers.text.libraries.sft_tokenizer import SFTTokenizer
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast as Saved

    words = Tokenizer(models.WordLevel({"<unk>": 0, "ask": 1, "say": 2}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made = Saved(tokenizer_object=words)  # type: ignore[no-untyped-call]
    made.save_pretrained(folder := tempfile.mkdtemp())
    roles = {"user": "ask ", "assistant": "say "}
    turns = [{"role": role, "content": content} for role, content in roles.items()]
    _, target = SFTTokenizer(folder, "identity").tokenize_conversation(turns, True, False)
    print("target:", target, "should be [-100, 2]")
    assert target[0] == -100


IGNORED = -100
LIBRARY = "megatron.core.tokenizers.text.libraries.sft_tokenizer"
PROMPTS = ("system", "user", "tool")
NAMES = [f"w{number}" for number in range(30)]
SPECIAL = ["<unk>", "<pad>", "<s>", "</s>", "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", "<SPECIAL_233>"]
OTHERS = ["System", "User", "Assistant"]  # words of Nemotron's templates
Turn = dict[str, str]


def saved(folder: str) -> str:
    """A tokenizer of whole words, with a chat template of its own, as Hugging Face keeps one."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    build: Any = PreTrainedTokenizerFast
    words = Tokenizer(models.WordLevel({name: at for at, name in enumerate(SPECIAL + OTHERS + NAMES)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    made = build(tokenizer_object=words, additional_special_tokens=SPECIAL[4:], **special)
    made.chat_template = "{{ '<s> ' }}{% for m in messages %}{{ m['content'] + ' </s> ' }}{% endfor %}"
    made.save_pretrained(folder)
    return folder


def words(content: str) -> list[int]:
    known = SPECIAL + OTHERS + NAMES
    return [known.index(word) for word in content.split()]


def expected(turns: list[Turn]) -> tuple[list[int], list[int]]:
    """Tokens and targets of contents that are joined as they are."""
    tokens, target = list[int](), list[int]()
    for turn in turns:
        ids = words(turn["content"])
        tokens += ids
        target += ids if turn["role"].lower() == "assistant" else [IGNORED] * len(ids)
    return tokens, target


def turn(role: str, *numbers: int) -> Turn:
    """A message, decorated as its template left it: words, then the end of a line."""
    return {"role": role, "content": " ".join(NAMES[number] for number in numbers) + " \n"}


def differ(got: Any, want: list[int]) -> int:
    """Positions at which an array of one dimension is not the list; 1000 where it is no such array."""
    if not isinstance(got, np.ndarray) or got.shape != (len(want),) or got.dtype.kind != "i":
        return 1000
    return int((got != np.array(want)).sum())


TALKS: dict[str, list[Turn]] = {
    "user, assistant": [turn("user", 1, 2), turn("assistant", 3, 4, 5)],
    "system first": [turn("system", 9), turn("user", 1, 2, 2), turn("assistant", 3)],
    "two rounds": [
        turn("system", 7, 7),
        turn("user", 1),
        turn("assistant", 2, 2),
        turn("user", 3),
        turn("assistant", 4),
    ],
    "a tool's answer": [
        *(turn("user", 1), turn("assistant", 2, 5), turn("tool", 3, 6, 1), turn("assistant", 4)),
    ],
    "ends with the user": [turn("user", 1), turn("assistant", 2), turn("user", 3, 3)],
    "without an answer": [turn("system", 1), turn("user", 2, 3)],
    "roles in other letters": [turn("System", 9), turn("USER", 1, 2), turn("Assistant", 3, 1), turn("Tool", 4)],
    "the same words said and asked": [turn("user", 5, 5), turn("assistant", 5, 5)],
}


@st.composite
def talks(draw: Any) -> list[Turn]:
    """Rounds of a prompt or several and an answer, with a system message or none."""
    some = st.lists(st.integers(0, len(NAMES) - 1), min_size=1, max_size=5)
    turns = [turn("system", *draw(some))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 4))):
        turns += [turn(draw(st.sampled_from(["user", "tool"])), *draw(some)) for _ in range(draw(st.integers(1, 2)))]
        turns += [turn("assistant", *draw(some))]
    return turns


def check_identity(p: probe.Probe, folder: str) -> None:
    """Targets of joined contents, by the library's tokenizer and by the one that a run builds."""
    library = p.upstream(LIBRARY).SFTTokenizer(folder, "identity")
    built = p.upstream("megatron.core.tokenizers.megatron_tokenizer").MegatronTokenizer.from_pretrained(
        tokenizer_path=folder, metadata_path={"library": "sft"}, prompt_format="identity"
    )
    for kind, tokenizer in (("library", library), ("built", built)):
        wrong_tokens = 0
        for name, turns in TALKS.items():
            given = copy.deepcopy(turns)
            made = tokenizer.tokenize_conversation(conversation=given, return_target=True, add_generation_prompt=False)
            tokens, target = made
            want, aim = expected(turns)
            p.error(f"{kind}: {name}: wrong targets", differ(target, aim), 0, reference="-100 of prompts", bug_above=1)
            wrong_tokens += differ(tokens, want) + 1000 * (given != turns) + (target.dtype != tokens.dtype)
            wrong_tokens += differ(tokenizer.tokenize_conversation(turns, False, False), want)
            target[:] = 1  # what is given out is the caller's
            wrong_tokens += differ(tokens, want)
        p.guard(f"{kind}: wrong tokens", wrong_tokens, 0, reference="the contents' words")

    def wrong(turns: list[Turn]) -> int:
        tokens, target = library.tokenize_conversation(turns, True, False)
        return differ(tokens, expected(turns)[0]) + differ(target, expected(turns)[1])

    p.drawn(
        "drawn: wrong targets", wrong, 0, space={"turns": talks()}, count=40, reference="-100 of prompts", bug_above=1
    )
    asked = library.text_to_ids(TALKS["ends with the user"])
    p.guard(
        "a conversation to answer",
        differ(np.array(asked), expected(TALKS["ends with the user"])[0]),
        0,
        reference="words",
    )
    p.guard("its type", not isinstance(asked, list), 0, reference="a list")
    p.guard("the token of padding", library.pad_id != SPECIAL.index("<unk>"), 0, reference="<unk>")


def check_neighbours(p: probe.Probe, folder: str) -> None:
    """The other formats: "default" keeps all, those of Nemotron mask prompts as they do."""
    sft = p.upstream(LIBRARY).SFTTokenizer
    turns = [
        *({"role": "system", "content": "w1"}, {"role": "user", "content": "w2 w3"}),
        *({"role": "assistant", "content": "w4"}, {"role": "user", "content": "w5"}),
        {"role": "assistant", "content": "w6 w7"},
    ]
    sft(folder, "identity").tokenize_conversation(
        TALKS["system first"], True, False
    )  # one format says nothing of another
    begin, ends, known = SPECIAL.index("<s>"), SPECIAL.index("</s>"), partial(words)
    plain = [begin] + [word for one in turns for word in [*known(one["content"]), ends]]
    tokens, target = sft(folder, "default").tokenize_conversation(turns, True, False)
    p.guard('"default": wrong targets', differ(tokens, plain) + differ(target, plain), 0, reference="all tokens")
    none = [IGNORED]
    aligned = none * 3 + none * 6 + known("w4") + none * 5 + known("w6 w7")
    nano = none * 3 + none * 4 + none * 3 + known("<SPECIAL_12>") + none * 3 + none * 3 + known("w7 <SPECIAL_12>")
    for name, want in (("nemotron-h-aligned", aligned), ("nemotron-nano-v2", nano)):
        _, target = sft(folder, name).tokenize_conversation(turns, True, False)
        p.note(name, str(target))
        p.guard(f'"{name}": wrong targets', differ(target, want), 0, reference="-100 of prompts and prefixes")
    for name, talk, kind in (
        ("an unknown role", [{"role": "judge", "content": "w1"}], ValueError),
        ("an empty answer", [turns[1], {"role": "assistant", "content": ""}], ValueError),
    ):
        p.guard(
            f'"nemotron-h-aligned": {name}',
            not raises(sft(folder, "nemotron-h-aligned"), talk, kind),
            0,
            reference=kind.__name__,
        )
    p.guard(
        "an unknown format",
        not raises_call(lambda: sft(folder, "identical"), NotImplementedError),
        0,
        reference="refused",
    )


def raises(tokenizer: Any, turns: list[Turn], kind: type[Exception]) -> bool:
    return raises_call(lambda: tokenizer.tokenize_conversation(turns, True, False), kind)


def raises_call(call: Callable[[], Any], kind: type[Exception]) -> bool:
    try:
        call()
    except kind:
        return True
    return False


def prepare(p: probe.Probe) -> None:
    """Tokenizers come from a folder; nothing asks the network."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"


def reproduce(p: probe.Probe) -> None:
    prepare(p)
    p.megatron_cpu()
    with tempfile.TemporaryDirectory() as folder:
        saved(folder)
        check_identity(p, folder)
        check_neighbours(p, folder)


if __name__ == "__main__":
    probe.main(reproduce, pack=63, package="megatron", minimal=minimal, prepare=prepare)
