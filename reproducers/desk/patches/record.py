"""The header of an exported patch as a record whose fields constrain each other."""

from __future__ import annotations

import datetime
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from reproducers.base.errors import PatchlaneError
from reproducers.base.files import file_sha256
from reproducers.desk.patches import mail
from reproducers.desk.patches.fields import URL, Evidence, Status, Target
from reproducers.record.schema import Model, Pack, Sha256


class Header(Model):
    """Fields that constrain each other; with ``context={"pack": pack, "pin": name}`` the pack constrains them too."""

    subject: str = Field(pattern=r"^[^\[\s].*\S$")  # git takes a bracket at the start for a tag of its own
    pack: int = Field(ge=1, le=999)
    upstream_status: Status
    origin: str = Field(min_length=1)
    bug: str
    applies_to: Target
    remove_when: str
    patch: Sha256
    reproducer: Sha256
    validated: tuple[Evidence, ...] = Field(min_length=1)
    review_by: datetime.date
    licence: str = Field(min_length=1)

    @field_validator("pack", "licence", "applies_to", "patch", "reproducer")
    @classmethod
    def _the_packs(cls, value: Any, info: ValidationInfo) -> Any:
        if info.context:
            wanted = due(info.context["pack"], info.context["pin"])[str(info.field_name)]
            if value != wanted:
                raise ValueError(f"{value} is not the pack's: {wanted}")
        return value

    @field_validator("upstream_status")
    @classmethod
    def _merged(cls, value: Status, info: ValidationInfo) -> Status:
        if info.context and value.word == "Backport":
            merged = fixing(info.context["pack"])
            if not set(value.threads) <= set(merged):
                raise ValueError(f"Backport of what is no merged fix: pack.yaml has {', '.join(merged) or 'none'}")
        return value

    @field_validator("origin")
    @classmethod
    def _named(cls, value: str, info: ValidationInfo) -> str:
        status = info.data.get("upstream_status")
        sources = status.threads if status and status.word == "Backport" else []
        if not any(name in value for name in ("patchlane", *sources)):
            raise ValueError("it names neither patchlane nor, for a backport, what was taken from upstream")
        return value

    @field_validator("bug")
    @classmethod
    def _thread(cls, value: str) -> str:
        if value != "none known" and not URL.fullmatch(value):
            raise ValueError('the URL of a public thread, or "none known"')
        return value

    @field_validator("remove_when")
    @classmethod
    def _removable(cls, value: str, info: ValidationInfo) -> str:
        status = info.data.get("upstream_status")
        if not value and (status is None or status.word != "Backport"):
            raise ValueError("empty, which only a backport's may be")
        return value

    @field_validator("validated")
    @classmethod
    def _this_patch(cls, value: tuple[Evidence, ...], info: ValidationInfo) -> tuple[Evidence, ...]:
        for found in value:
            if found.patch != info.data.get("patch", found.patch):
                raise ValueError(f"the {found.lane} receipt is of another patch: {found.patch}")
        if len({found.lane for found in value}) < len(value):
            raise ValueError("one receipt a lane")
        return value

    @field_validator("review_by")
    @classmethod
    def _later(cls, value: datetime.date, info: ValidationInfo) -> datetime.date:
        newest = max((found.taken for found in info.data.get("validated", ())), default=datetime.date.min)
        if value <= newest:
            raise ValueError(f"{value} is not after the newest receipt, of {newest}")
        return value

    def trailers(self) -> list[tuple[str, str]]:
        """(name, value) of all fields but the subject, in the order in which they are written."""
        pairs = []
        for name, field in mail.FIELDS.items():
            value = getattr(self, field)
            for one in value if isinstance(value, tuple) else (value,):
                text = {"pack": "{:02d}", "patch": "sha256:{}", "reproducer": "sha256:{}"}.get(field, "{}").format(one)
                pairs += [(name, text)] if text else []
        return pairs


def due(pack: Pack, pin: str) -> dict[str, Any]:
    """What the fields must be that only restate the pack."""
    patch = None if pack.healthy_at(pin) or pin not in pack.pins else pack.patch_at(pin)
    if patch is None:
        having = [name for name in pack.pins if pack.patch_at(name) and not pack.healthy_at(name)]
        raise PatchlaneError(f"{pack.id} has no patch at pin {pin}", f"pins with one: {', '.join(having) or 'none'}")
    return {
        "pack": pack.number,
        "licence": pack.upstream.licence,
        "applies_to": Target.at(pack, pack.pins[pin]),
        "patch": file_sha256(patch),
        "reproducer": file_sha256(pack.reproducer),
    }


def fixing(pack: Pack) -> list[str]:
    """The merged threads that fix the bug upstream."""
    return [t.url for t in pack.upstream_state.threads if t.relation == "fixes it" and t.state == "merged"]
