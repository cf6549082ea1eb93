"""How each upstream formats its own code, from its own configuration."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

from patchlane.base import clock


@dataclass(frozen=True)
class Formatter:
    """An upstream's formatter: modules and versions that it needs, upstream's file that says so, and the function."""

    needs: dict[str, str]
    config: str
    run: Callable[[str], str]

    def missing(self) -> str:
        """The command that installs what it lacks here; empty if it lacks nothing."""
        wrong = [f"{n}=={v}" if v else n for n, v in self.needs.items() if not _has(n, v)]
        return f"pip install {' '.join(wrong)}" if wrong else ""

    def releases(self) -> dict[str, str]:
        """{module: its installed release} of what it needs, none of which may be missing."""
        return {name: _release(name) for name in self.needs}


@functools.cache
def _release(name: str) -> str:
    return version(name)


def _has(name: str, wanted: str) -> bool:
    return importlib.util.find_spec(name) is not None and wanted in ("", version(name))


def _megatron(text: str) -> str:
    import black
    import isort

    mode = black.Mode(line_length=100, magic_trailing_comma=False, string_normalization=False)
    options = {"known_first_party": ["megatron"], "known_third_party": ["transformer_engine"], "py_version": "312"}
    done: str = isort.code(black.format_str(text, mode=mode), profile="black", line_length=100, **options)
    return done


def _ruff(width: int) -> Callable[[str], str]:
    def run(text: str) -> str:
        command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", str(width), "-"]
        done = clock.run(command, clock.STEP_S, "ruff", input=text, capture_output=True, text=True)
        done.check_returncode()
        return str(done.stdout)

    return run


FORMATTERS: dict[str, Formatter] = {
    "NVIDIA/Megatron-LM": Formatter(
        {"black": "26.3.0", "isort": "5.13.2"},
        "https://github.com/NVIDIA/Megatron-LM/blob/d98e8a64ddf34856e74b24714e3bedb2f5a39553/tools/autoformat.sh",
        _megatron,
    ),
    "tile-ai/tilelang": Formatter(
        {"ruff": ""},
        "https://github.com/tile-ai/tilelang/blob/a35008a42531c62b976ae4cec3855d4383db0f3c/pyproject.toml",
        _ruff(140),
    ),
    "linkedin/Liger-Kernel": Formatter(
        {"ruff": ""},
        "https://github.com/linkedin/Liger-Kernel/blob/ead96b618e5c67bddc6a6e9bcb99bfe6b5ab661c/pyproject.toml",
        _ruff(120),
    ),
    "huggingface/transformers": Formatter(
        {"ruff": ""},
        "https://github.com/huggingface/transformers/blob/01a9af15c5f5dc9e70d4d1bb298d1fc53af4f82f/pyproject.toml",
        _ruff(119),
    ),
}  # state-spaces/mamba names none
