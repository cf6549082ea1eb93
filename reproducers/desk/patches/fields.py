"""Values of an exported patch's header that have parts: each is read from its text and written back as that."""

from __future__ import annotations

import datetime
import re
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from reproducers.record.schema import GitSha, Model, Pack, Pin, Sha256

URL = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull|commit)/\w+(?:#\S+)?")
RULED = Literal["REPRODUCED_AND_FIXED"]


class Value(Model):
    """A value with parts: ``form`` is its text, ``shape`` shows it in messages."""

    form: ClassVar[re.Pattern[str]]
    shape: ClassVar[str]

    @classmethod
    def of(cls, text: str) -> Self:
        """The value that ``text`` says; ValueError, with the shape that is expected, where it says none."""
        match = cls.form.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not of the form {cls.shape}")
        return cls.model_validate(match.groupdict())

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        return cls.of(data).model_dump() if isinstance(data, str) else data


class Status(Value):
    """Upstream-Status in Yocto's words, never without its URL or reason."""

    form = re.compile(
        r"(?P<word>\w+) \[(?:(?P<url>https://github\.com/\S+) on (?P<on>\d{4}-\d\d-\d\d)|(?P<why>.*\S.*))\]"
    )
    shape = '"Submitted [URL on DAY]", "Backport [URL]", "Pending [reason]" or "Inappropriate [reason]"'
    word: Literal["Submitted", "Backport", "Pending", "Inappropriate"]
    url: str | None = None
    on: datetime.date | None = None
    why: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Status:
        if self.word == "Submitted" and (self.on is None or not URL.fullmatch(self.url or "")):
            raise ValueError("Submitted needs the URL of the thread and the day it was filed on")
        if self.word != "Submitted" and not self.why:
            raise ValueError(f"{self.word} needs a reason, and only Submitted has a day")
        if self.word == "Backport" and not self.threads:
            raise ValueError("Backport needs the URL of what fixes it upstream")
        return self

    @property
    def threads(self) -> list[str]:
        """Every URL that it names."""
        return URL.findall(self.url or self.why or "")

    def __str__(self) -> str:
        return f"{self.word} [{self.why or f'{self.url} on {self.on}'}]"


class Target(Value):
    """Applies-To: a release by its full SHA, or by its artefact's digest where none is known; a SHA of no release."""

    form = re.compile(
        r"(?P<distribution>[\w.-]+) (?:git|(?P<release>[\w.+!-]+)) "
        r"\((?:sha256:(?P<artifact>[0-9a-f]{64})|(?P<sha>[0-9a-f]{40}))\)(?: after packs? (?P<after>\d+(?:, \d+)*))?"
    )
    shape = '"DISTRIBUTION RELEASE (40-hex SHA)", "... git (40-hex SHA)" or "... RELEASE (sha256:DIGEST)"'
    distribution: str
    release: str | None = None
    sha: GitSha | None = None
    artifact: Sha256 | None = None
    after: str | None = None

    @model_validator(mode="after")
    def _named(self) -> Target:
        if (self.sha is None) == (self.artifact is None):
            raise ValueError("a full SHA or an artefact's digest, and one of them only")
        if self.release is None and self.sha is None:
            raise ValueError("a digest of what: name the release")
        return self

    @classmethod
    def at(cls, pack: Pack, pin: Pin) -> Self:
        """What a patch for ``pin`` applies to."""
        artifact = None if pin.sha else min(pin.artifacts.items())[1]
        after = ", ".join(f"{number:02d}" for number in pin.stacked_on) or None
        named: dict[str, Any] = {"release": pin.release, "sha": pin.sha, "artifact": artifact, "after": after}
        return cls(distribution=pack.upstream.distribution, **named)

    def __str__(self) -> str:
        known = self.sha or f"sha256:{self.artifact}"
        packs = f" after pack{'s' if ',' in self.after else ''} {self.after}" if self.after else ""
        return f"{self.distribution} {self.release or 'git'} ({known}){packs}"


class Evidence(Value):
    """Validated: the newest receipt of one lane, its verdict and day, and the digest of the patch that it ran."""

    form = re.compile(
        r"(?P<lane>\w+) (?P<verdict>\w+) on (?P<taken>\d{4}-\d\d-\d\d), "
        r"receipt sha256:(?P<receipt>[0-9a-f]{64}), patch sha256:(?P<patch>[0-9a-f]{64})"
    )
    shape = '"LANE VERDICT on DAY, receipt sha256:DIGEST, patch sha256:DIGEST"'
    lane: Literal["cpu", "cuda"]
    verdict: RULED = Field(description="what a patch that is handed on must have earned")
    taken: datetime.date
    receipt: Sha256
    patch: Sha256

    def __str__(self) -> str:
        return f"{self.lane} {self.verdict} on {self.taken}, receipt sha256:{self.receipt}, patch sha256:{self.patch}"
