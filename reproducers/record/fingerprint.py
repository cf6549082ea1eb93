"""``packs/fingerprints.json``: which code has each pack's bug and which has not, by digests of functions; generated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from patchlane.base.errors import PatchlaneError, from_git
from patchlane.base.files import bytes_of
from reproducers.record import schema
from reproducers.record.schema import Model, Pack, PatchName

NAME = "fingerprints.json"
Digest16 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
KnownState = Literal["buggy", "patched", "fixed"]


class KnownTree(Model):
    """One tree of which receipts say whether it has the bug.

    ``name``: its release or commit, with the packs in it. ``patch``: of a patched tree the one in it, of a buggy one
    the one that mends it. ``beside``: releases that must be installed beside it, where only these decide.
    ``code``: {"path:qualified name": digest, None where the tree has no such function}; empty where no patch says which
    functions matter.
    """

    name: str
    release: str | None = None
    state: KnownState
    patch: PatchName | None = None
    beside: dict[str, str] = Field(default={})
    code: dict[str, Digest16 | None] = Field(default={})


class Fingerprint(Model):
    """What is known of one pack; paths in ``code`` are below the import root, ``megatron/core/...``."""

    distribution: str
    package: str
    trees: list[KnownTree]

    @property
    def functions(self) -> list[str]:
        """``path:qualified name`` of all that the pack's patches change."""
        return sorted({name for tree in self.trees for name in tree.code})

    def releases(self, state: KnownState) -> list[str]:
        """The releases of that state, in the file's order."""
        return [tree.release for tree in self.trees if tree.release and tree.state == state and not tree.beside]


class Fingerprints(Model):
    """The whole file, by pack id."""

    schema_version: Literal[1] = 1
    packs: dict[str, Fingerprint]

    @property
    def text(self) -> str:
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True) | {"schema_version": 1}, indent=1) + "\n"


def path_of(packs: list[Pack]) -> Path:
    """Where the file lies: beside the packs."""
    return packs[0].folder.parent / NAME if packs else schema.ROOT / "packs" / NAME


def load(path: Path) -> Fingerprints:
    """The file's content; PatchlaneError where it is missing or is none."""
    try:
        return Fingerprints.model_validate_json(bytes_of(path))
    except OSError as error:
        raise PatchlaneError(f"{path}: cannot be read ({error.strerror})", from_git(path)) from error
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"])) or "(whole file)"
        raise PatchlaneError(f"{path}: {where}: {fault['msg']}", from_git(path)) from error
