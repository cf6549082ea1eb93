"""What the Open Source Vulnerability format 1.7.5 asks of a record, by its page: the fields that packs fill in."""

from typing import Annotated, Literal

from pydantic import AnyUrl, BaseModel, ConfigDict, Field, model_validator

Text = Annotated[str, Field(min_length=1)]
Time = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")]
GIT_EVENT = Annotated[str, Field(pattern=r"^(0|[0-9a-f]{40}|[0-9a-f]{64})$")]
KINDS = (
    *("ADVISORY", "ARTICLE", "DETECTION", "DISCUSSION", "REPORT", "FIX", "INTRODUCED"),
    *("GIT", "PACKAGE", "EVIDENCE", "WEB"),
)


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Event(Closed):
    introduced: Text | None = None
    fixed: Text | None = None
    last_affected: Text | None = None
    limit: Text | None = None

    @model_validator(mode="after")
    def _one(self):
        if len(self.model_fields_set) != 1:
            raise ValueError("an event is one thing")
        return self


class GitEvent(Event):
    introduced: GIT_EVENT | None = None
    fixed: GIT_EVENT | None = None
    last_affected: GIT_EVENT | None = None
    limit: GIT_EVENT | None = None


class Range(Closed):
    type: Literal["ECOSYSTEM"]
    events: list[Event] = Field(min_length=1)

    @model_validator(mode="after")
    def _events(self):
        names = {name for event in self.events for name in event.model_fields_set}
        if "introduced" not in names or {"fixed", "last_affected"} <= names:
            raise ValueError("a range is introduced, and ends by a fix or by what was last affected")
        return self


class GitRange(Range):
    type: Literal["GIT"]
    repo: Annotated[str, Field(pattern=r"^https://")]
    events: list[GitEvent] = Field(min_length=1)


class Package(Closed):
    ecosystem: Literal["PyPI"]
    name: Text
    purl: Annotated[str, Field(pattern=r"^pkg:pypi/[a-z0-9.-]+$")]


class Affected(Closed):
    package: Package
    versions: list[Text]
    ranges: list[Annotated[Range | GitRange, Field(discriminator="type")]]


class Reference(Closed):
    type: Literal[KINDS]
    url: Annotated[AnyUrl, Field(strict=False)]


class OsvRecord(Closed):
    schema_version: Literal["1.7.5"]
    id: Annotated[str, Field(pattern=r"^x_")]
    modified: Time
    published: Time
    summary: Annotated[str, Field(min_length=1, pattern=r"^[^\n]*$")]
    details: Text
    affected: list[Affected] = Field(min_length=1)
    references: list[Reference]
    database_specific: dict
