"""Names of weights in a Megatron checkpoint and in safetensors, one to one.

Where Hugging Face's DeepSeek-V3 has a name for the same thing it is that name
(transformers/models/deepseek_v3/modeling_deepseek_v3.py @ v4.57.0): ``model.layers.4.self_attn.kv_b_proj.weight``. A
checkpoint holds a layer's experts as one tensor [experts, out, in], safetensors hold one an expert.
"""

from __future__ import annotations

import re

from model.families.family import Family

STACK = ("decoder.layers", "model.layers")
STACK_OF_MAKERS = ("model.layers", "layers")
Exchange = tuple[str, re.Pattern[str], str]  # what stands in a name, where it is whole words, what takes its place


class Names:
    """Of one architecture's weights."""

    def __init__(self, size: Family) -> None:
        self._pairs = _ordered({STACK, *(pair for kind in size.every for pair in kind.names)})
        self._makers = _ordered({STACK_OF_MAKERS, *(pair for kind in size.every for pair in kind.makers)})
        self._numbered = [kind.numbered for kind in size.every if kind.numbered]

    def exported(self, key: str) -> str:
        """The name for safetensors of a checkpoint's ``key``; of all experts of a layer without a number."""
        return _exchanged(key, self._pairs)

    def of_makers(self, name: str) -> str:
        """What the public model's makers call ``name``, the public model's, in their files."""
        return _exchanged(name, self._makers)

    def of_expert(self, name: str, number: int) -> str:
        """The name of one expert's part of a tensor that ``exported`` names for all."""
        for module in self._numbered:
            name = name.replace(f".{module}.", f".{module}.{number}.")
        return name

    def stacked(self, name: str) -> bool:
        """Whether a name that ``exported`` gives is of all experts of a layer."""
        return any(f".{module}." in name for module in self._numbered)


def _ordered(pairs: set[tuple[str, str]]) -> list[Exchange]:
    """The longest first: a part of another one must not be replaced alone."""
    ordered = sorted(pairs, key=lambda pair: (-len(pair[0]), pair))
    return [(old, re.compile(rf"(^|\.){re.escape(old)}(?=\.|$)"), rf"\g<1>{new}") for old, new in ordered]


def _exchanged(name: str, pairs: list[Exchange]) -> str:
    """Each pair's second in place of its first, in their order."""
    for old, pattern, new in pairs:
        if old in name:
            name = pattern.sub(new, name, count=1)
    return name
