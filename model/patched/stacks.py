"""model/stacks.yaml: the whole stacks of upstream code that a run may train on, and what each pack is worth on one."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import KEY, within
from reproducers.base.verdicts import Verdict
from reproducers.record import schema
from reproducers.record.entry import Entry
from reproducers.record.schema import Model, Pack, Pin, Place
from reproducers.upstream import patching
from reproducers.upstream.patching import ApplyClass
from reproducers.upstream.store import Tree

FILE = Path(__file__).parents[1] / "stacks.yaml"
DEFAULT = "released"


class Stack(Model):
    """The release or commit of each distribution to train on, and the needs beside them on each device.

    ``absent``: {pack: why the code that it is about is not there}. ``unpatched``: {pack: why a run does well without
    its patch, where the bug is there}. ``paths``: those asked for where a run names none.
    """

    name: str = Field(exclude=True)
    about: str
    absent: dict[int, str] = Field(default={})
    unpatched: dict[int, str] = Field(default={})
    paths: dict[str, str] = Field(default={})
    code: dict[str, Pin]
    needs: dict[str, list[str]]

    @model_validator(mode="after")
    def _plain(self) -> Stack:
        for name, pin in self.code.items():
            if pin.needs or pin.patch or pin.stacked_on or pin.expect != "bug" or (pin.release and pin.sha):
                raise ValueError(f"code.{name}: a release, or a sha")
        if set(self.needs) != {"cpu", "cuda"}:
            raise ValueError("needs: lists for cpu and cuda")
        return self

    def label(self, distribution: str) -> str:
        """The release, or the SHA, of a distribution."""
        return self.code[distribution].origin.key

    @property
    def lock(self) -> Path:
        """The stack's lock file; the default stack's has no name in it."""
        named = within(FILE.parent, self.name, KEY)
        return named.with_name("patches.lock" if self.name == DEFAULT else f"patches.{self.name}.lock")

    @property
    def option(self) -> str:
        """What a command needs to mean this stack."""
        return "" if self.name == DEFAULT else f"--stack {self.name}"

    def __str__(self) -> str:
        return ", ".join(f"{name} {self.label(name)}" for name in self.code)

    def pin_name(self, pack: Pack) -> str | None:
        """The pack's pin of the stack's own tree, None if it has none.

        Of several, the first whose needs the stack has, then the first: another Transformer Engine beside the same
        release can be what mends the bug.
        """
        wanted = self.code.get(pack.upstream.distribution)
        if wanted is None:
            return None
        key = wanted.origin.key
        own = [name for name, pin in pack.pins.items() if key in (pin.release, pin.sha) and not pin.stacked_on]
        beside = [name for name in own if set(pack.pins[name].needs) <= self._beside]
        return next(iter([*beside, *own]), None)

    @property
    def _beside(self) -> set[str]:
        """The sets of needs that the stack has: its own, and its distributions as other packs name them."""
        return {*self.needs["cuda"], *(f"{name}-{pin.release}" for name, pin in self.code.items())}


UNPROVED = ("draft", "reproduced")  # states of a pack that runs leave out


class Worth(str, Enum):
    """What a pack is worth on a stack."""

    NEEDED = "needed"
    GONE = "gone"
    ABSENT = "absent"
    CONFLICTING = "conflicting"
    UNTRIED = "untried"
    HELD = "held"


@dataclass(frozen=True)
class Standing:
    """A pack on a stack: its worth, why, and the patch that a run applies if it is needed."""

    pack: Pack
    worth: Worth
    reason: str
    patch: Path | None = None


def patch_of(stack: Stack, pack: Pack) -> Path | None:
    """The patch that is meant for the stack's tree: its pin's own, or fix.patch where no pin is of that tree."""
    return pack.patch_at(stack.pin_name(pack) or stack.label(pack.upstream.distribution))


def mended(stack: Stack, pack: Pack, entry: Entry | None) -> bool:
    """Whether the records say that the stack's tree has the pack's bug and that its patch mends it there."""
    if stack.pin_name(pack) == "live":
        return True
    verdict = None if entry is None else entry.tried.get(stack.label(pack.upstream.distribution))
    return not _healthy(stack, pack) and verdict is Verdict.REPRODUCED_AND_FIXED


def _healthy(stack: Stack, pack: Pack) -> bool:
    name = stack.pin_name(pack)
    return name is not None and pack.healthy_at(name)


def standing(stack: Stack, pack: Pack, entry: Entry | None, pristine: Tree) -> Standing:
    """What ``pack`` is worth on ``stack``: by its receipts, ``entry``, and whether a patch applies to ``pristine``."""
    name, label = stack.pin_name(pack), stack.label(pack.upstream.distribution)
    verdict = None if entry is None else entry.tried.get(label)
    if _healthy(stack, pack):
        return Standing(pack, Worth.GONE, f"pin {name} of the pack is without the bug")
    if verdict is Verdict.FIXED_UPSTREAM:
        return Standing(pack, Worth.GONE, "its receipt finds no bug there")
    patch = patch_of(stack, pack)
    if patch is None:
        return Standing(pack, Worth.CONFLICTING, f"pin {name} names no patch")
    fit = patching.classify(pristine.path, patch, patching.strip_for(pristine.path, pack.upstream.source_root))
    if fit.kind is ApplyClass.ALREADY_APPLIED:
        return Standing(pack, Worth.GONE, f"the tree holds what {patch.name} adds")
    live = _said(verdict)
    if fit.kind is not ApplyClass.CLEAN and verdict is None and pack.number in stack.absent:
        return Standing(pack, Worth.ABSENT, stack.absent[pack.number])
    if fit.kind is not ApplyClass.CLEAN:
        return Standing(pack, Worth.CONFLICTING, f"{patch.name} does not apply; {live}")
    if pack.filing.decision == "hold":
        return Standing(pack, Worth.HELD, f"held back from filing; {live}")
    if entry.state in UNPROVED if entry else name == "live":
        left = "its patch has not been proved on every lane"
        return Standing(pack, Worth.UNTRIED, f"{patch.name} applies; {entry.state if entry else 'draft'}: {left}")
    if mended(stack, pack, entry):
        return Standing(pack, Worth.NEEDED, f"{patch.name}; {live}", patch)
    remedy = f"python -m reproducers.run {pack.id} --at {label}"
    return Standing(pack, Worth.UNTRIED, f"{patch.name} applies; {remedy} tells whether it is needed")


def _said(verdict: Verdict | None) -> str:
    """What a receipt of the stack's tree says of the bug."""
    if verdict in (Verdict.REPRODUCED, Verdict.REPRODUCED_AND_FIXED):
        return "the bug is live"
    return "not tried there" if verdict is None else f"its reproducer ends with {verdict.value} there"


@functools.cache
def load(path: Path = FILE) -> dict[str, Stack]:
    """Every stack, by name, with the files that packs/releases.yaml has of its releases.

    Raises PatchlaneError, naming file, line and field, if a file is bad, and in an installed wheel, which has no packs.
    """
    if not (schema.ROOT / "packs").is_dir():
        raise PatchlaneError(
            f"no packs beside {schema.ROOT / 'model'}", "train from a clone: pip install -e '.[cpu,train]'"
        )

    class Record(Model):
        schema_version: Literal[1]
        stacks: dict[str, Stack]

    text, data = schema.read_yaml(path)
    releases = schema.load_releases(schema.ROOT / "packs")
    for name, stack in data.get("stacks", {}).items():
        stack["name"] = name
        stack["code"] = {
            distribution: schema.resolved(
                Place(path, text, ("stacks", name, "code", distribution)), pin, distribution, releases, with_sha=False
            )
            for distribution, pin in stack.get("code", {}).items()
        }
    try:
        return Record.model_validate(data).stacks
    except ValidationError as error:
        raise schema.explain(path, text, error) from error


def named(name: str = DEFAULT) -> Stack:
    """The stack of this name. Raises PatchlaneError if there is none."""
    known = load()
    if name not in known:
        raise PatchlaneError(f"no stack is named {name!r}", f"--stack with one of: {', '.join(known)}")
    return known[name]


def refuse_idle(packs: Path = schema.ROOT / "packs") -> None:
    """Raise PatchlaneError, with file and line, for releases in releases.yaml that no pin, need or stack names."""
    named = {
        (pack.upstream.distribution, pin.release) for pack in schema.load_packs(packs) for pin in pack.pins.values()
    }
    named |= {(need.distribution, need.release) for needs in schema.load_needs(packs).values() for need in needs}
    named |= {(name, pin.release) for stack in load().values() for name, pin in stack.code.items()}
    path = packs / schema.RELEASES
    schema.refuse(
        [
            Place(path, schema.text_of(path), (name,)).fault(
                release, "no pin, need or stack names it", f"take it out of packs/{schema.RELEASES}"
            )
            for name, own in schema.load_releases(packs).items()
            for release in own
            if (name, release) not in named
        ]
    )
