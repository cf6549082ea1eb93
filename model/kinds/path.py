"""A kernel path, one implementation of a part of the model, and all that is said of it, in one record.

An entry in ``model/kinds/NAME.py``, its kernels' file and a test are what a kernel path is. What installs it is named
by a string, for paths are chosen before torch is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from model.kinds.run import Run

# (the family's size, the run) -> what is missing, or None. Each kind's file reads the size's fields that are its own.
Need = Callable[[Any, Run], str | None]


@dataclass(frozen=True)
class Seam:
    """One change of upstream at run time, outside packs, and the code that it rests on.

    ``upstream``: "module:qualified name" of a function or class, or "module" for a whole file.
    ``sha256``: of that source in the default stack with all packs; ``also``: without some of them, or in other stacks,
    where it was read too.
    ``owner``: "ours", or the pack that carries the change. ``ours``: why upstream could not take it; what it could is
    a pack of kind performance, and no seam.
    """

    name: str
    upstream: str
    sha256: str
    reason: str
    owner: str = "ours"
    also: tuple[str, ...] = ()
    ours: str = ""


@dataclass(frozen=True)
class Code:
    """Code of upstream, or of a pack, without which a path cannot run: "module:qualified name", and a word in it."""

    upstream: str
    word: str


@dataclass(frozen=True)
class Path:
    """``name``: as --path KIND=NAME has it. ``needs``: each says what is missing here, or None.

    ``code``: what only some stacks, or a pack, have. ``seams``: what the path changes upstream.
    ``install``: "module:function", called with the network when that is built.
    ``settings``: fields of Megatron's configuration. ``compiles``: kernels to compile before the first step.
    ``kernels``: {a label in profiles: a pattern of its kernels' names}. ``graphs``: whether it is taken unasked where
    layers are captured. ``option``: why one would ask for it, where no run takes it unasked.
    """

    name: str
    needs: tuple[Need, ...] = ()
    code: Code | None = None
    seams: tuple[Seam, ...] = ()
    install: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    compiles: tuple[str, ...] = ()
    kernels: Mapping[str, str] = field(default_factory=dict)
    graphs: bool = True
    option: str = ""


@dataclass(frozen=True)
class Part:
    """What of the model has several implementations. ``name``: the KIND of --path; ``paths``: best first.

    ``layers``: whether it is what the layers of the kind with its name run, and no part of several kinds.
    """

    name: str
    label: str
    paths: tuple[Path, ...]
    layers: bool = False

    def path(self, name: str) -> Path:
        """The path of this name. KeyError where there is none."""
        return {path.name: path for path in self.paths}[name]


@dataclass(frozen=True)
class Choice:
    """The name of a chosen path and the reason for it, as run.json has them."""

    name: str
    reason: str


def called(place: str) -> Callable[..., Any]:
    """The function at "module:function"."""
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
