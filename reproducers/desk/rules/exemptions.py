"""``packs/lint-exemptions.yaml``: known faults that are not reported, each with its reason and its last day."""

from __future__ import annotations

import datetime
from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError

from reproducers.record.schema import Model, explain, read_yaml

NAME = "lint-exemptions.yaml"


class Exemption(Model):
    """Faults of ``rule`` in ``pack`` (as pack05) with ``match`` in their text are not reported, for ``reason``.

    An exemption that keeps none back is a fault, and so is one after the day ``until``.
    """

    rule: str
    pack: str
    match: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    until: datetime.date


def read(folder: Path) -> list[Exemption]:
    """The exemptions of a folder of packs, none without the file; PatchlaneError when it is malformed."""
    path = folder / NAME
    if not path.is_file():
        return []
    text, data = read_yaml(path)
    try:
        return TypeAdapter(list[Exemption]).validate_python(data or [])
    except ValidationError as error:
        raise explain(path, text, error) from error
