"""``approval.yaml`` of a pack: who read which files, in which form and on which day. Any change of them voids it."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, Field, ValidationError

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import write_atomic
from reproducers.desk.text.dossier import sums
from reproducers.record.schema import Model, Pack, Sha256, explain, read_yaml

NAME = "approval.yaml"
HEADER = "# Written by `python -m reproducers.approve` for the person named below. Never edit: any change voids it.\n"
LONGEST = 80


def full_name(text: str) -> str:
    """The name with single spaces. Raises ValueError if it is not a person's full name."""
    name = " ".join(text.split())
    words = [word for word in name.split() if re.search(r"[^\W\d_]", word)]
    if "@" in name:
        raise ValueError("is an e-mail address, and only a name is kept")
    if "patchlane" in name.casefold():
        raise ValueError("is the project's, and only a person can approve")
    if len(words) < 2 or len(name) > LONGEST or not name.isprintable() or re.search(r"[\d<>:/\\]", name):
        raise ValueError('is not a full name, as in "Jane Doe"')
    return name


class Approval(Model):
    """The files that ``name`` read on ``date``: the digest of all, and of each file, to tell which one changed."""

    schema_version: Literal[1] = 1
    form: Literal["issue", "pr", "comment"]
    name: Annotated[str, AfterValidator(full_name)]
    date: datetime.date
    digest: Sha256
    files: dict[str, Sha256] = Field(min_length=1)


def path(pack: Pack) -> Path:
    """Where the pack's approval is recorded."""
    return pack.folder / NAME


def read(pack: Pack) -> Approval | None:
    """The recorded approval, None if there is none. Raises PatchlaneError if the record is malformed."""
    if not path(pack).exists():
        return None
    text, data = read_yaml(path(pack))
    try:
        return Approval.model_validate(data)
    except ValidationError as error:
        raise PatchlaneError(
            explain(path(pack), text, error).what, f"rm {NAME} of the pack, then approve it"
        ) from error


def write(pack: Pack, approval: Approval) -> Path:
    """Record the approval; the file is replaced whole."""
    text = yaml.safe_dump(approval.model_dump(), sort_keys=False, allow_unicode=True, width=120)
    write_atomic(path(pack), (HEADER + text).encode())
    return path(pack)


def changes(given: Approval, form: str, files: dict[str, bytes], digest: str, day: datetime.date) -> list[str]:
    """Why the approval does not hold for these files, posted in this form on that day; empty if it holds.

    ``digest`` is the one of all ``files``.
    """
    before, now, reasons = given.files, sums(files), []
    if given.form != form:
        reasons.append(f"it was given for the form {given.form}, not {form}")
    if given.date > day:
        reasons.append(f"it is dated {given.date}, after {day}")
    reasons += [f"{name} is gone" for name in sorted(before.keys() - now.keys())]
    reasons += [f"{name} is new" for name in sorted(now.keys() - before.keys())]
    reasons += [f"{name} changed" for name in sorted(before.keys() & now.keys()) if before[name] != now[name]]
    if not reasons and given.digest != digest:
        reasons.append("its digest is not that of its files")
    return reasons
