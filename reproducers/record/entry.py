"""The manifest as a record: the entry of each pack and the chains of receipts in ``manifest.yaml``."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from patchlane.base.errors import PatchlaneError, from_git
from reproducers.base.verdicts import Verdict
from reproducers.probe.checks import Outcome
from reproducers.record.receipt import ArmName, Host
from reproducers.record.schema import Kind, Model, Once, Sha256, explain, read_yaml

HEADER = "# Generated from packs/*/pack.yaml and receipts/ by `python -m reproducers.manifest refresh`. Never edit.\n"
MEND = from_git("manifest.yaml")


class ArmEntry(Model):
    """How the last repeat of an arm ended, and the number of repeats."""

    outcome: Outcome
    exit_code: int
    repeats: int


class LaneEntry(Model):
    """The newest receipt of a lane, reduced to the facts that a reader decides by.

    ``changed_since``: the pack's files and pin that have changed since the receipt.
    """

    verdict: Verdict
    sentinels: list[str]
    arms: dict[ArmName, ArmEntry]
    host: Host
    versions: dict[str, str]
    receipt: str
    receipt_sha256: Sha256
    log_sha256: Sha256
    taken: datetime.date
    valid_until: datetime.date
    changed_since: list[str]


class Entry(Model):
    """One pack. ``tried``: {release or commit, with the packs stacked beneath: newest verdict}."""

    title: str
    kind: Kind
    state: str
    live: str
    lanes: dict[str, LaneEntry]
    lanes_without_receipt: list[str]
    tried: dict[str, Verdict]


class Reach(Model):
    """Hunks of a patch that the same training runs execute, by their names: ``FILE hunk N``.

    ``default``: each "DEVICE STACK" of which every size's newest run that asks for no path executes them, and not by an
    import alone. ``newest``, ``run``: the newest that does, None where none does; ``why``: then the pack's own word.
    """

    hunks: list[str]
    where: str
    default: list[str] = Field(default=[])
    newest: datetime.date | None = None
    run: str | None = None
    why: str | None = None


class Chain(Model):
    """The open receipts of one folder: a digest over their names and contents, and their names, oldest first.

    ``archive``: the digest over the members of the folder's archive, where it has one.
    """

    sha256: Sha256
    names: list[str]
    archive: Sha256 | None = None


class Manifest(Model):
    """The whole file. ``verifier``: the digest of the code that proved the receipts. ``generated``: of other files.

    ``training``: {pack: {patch: where kept training runs execute it}}, of packs that a kept run applied.
    """

    schema_version: Literal[1] = 1
    verifier: Sha256 | None = None
    generated: dict[str, Sha256] = Field(default={})
    packs: dict[str, Entry]
    training: dict[str, dict[str, list[Reach]]] = Field(default={})
    receipts: dict[str, Chain]

    @property
    def text(self) -> str:
        """The text of the file."""
        content = self.model_dump(mode="json", exclude_unset=True)
        return HEADER + yaml.safe_dump({"schema_version": 1, **content}, sort_keys=False, width=120)


def read(path: Path) -> Manifest:
    """The manifest in the file. Raises PatchlaneError with file, line and field if it is missing or damaged."""
    text, data = read_yaml(path)
    try:
        return Manifest.model_validate(data)
    except ValidationError as error:
        raise PatchlaneError(explain(path, text, error).what, MEND) from error


def proved(text: str) -> tuple[str | None, dict[str, Chain]]:
    """(digest of the verifier, chains that it proved) of a manifest's text; nothing where it cannot be read."""
    try:
        manifest = Manifest.model_validate(yaml.load(text, Loader=Once))
    except (ValueError, RecursionError, yaml.YAMLError):
        return None, {}
    return manifest.verifier, manifest.receipts


def read_chains(path: Path) -> dict[str, Chain]:
    """The manifest's chains, even if the rest of it is damaged. Raises PatchlaneError if they are, or it is missing."""
    _, data = read_yaml(path)
    try:
        return TypeAdapter(dict[str, Chain]).validate_python(data["receipts"])
    except (LookupError, TypeError, ValueError) as error:
        raise PatchlaneError(f"{path}: its list of receipts cannot be read", MEND) from error
