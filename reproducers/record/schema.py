"""The records under ``packs/`` as frozen, cross-checked models: ``NN_slug/pack.yaml``, needs.yaml, releases.yaml.

A release is named in pack.yaml and needs.yaml, and in the model's stacks.yaml; its SHA and its files by digest stand
once, in releases.yaml.
"""

from __future__ import annotations

import ast
import datetime
import fnmatch
import functools
import itertools
import pickle
import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import astray, bytes_of
from reproducers.record.origin import Origin

DEEPEST = 200  # levels of YAML in each other; a pack has 6
ROOT = Path(__file__).resolve().parents[2]
RELEASES = "releases.yaml"  # beside the packs
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
GitSha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
PinName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
PatchName = Annotated[str, StringConstraints(pattern=r"^[\w.-]+\.patch$")]


def _inner(value: str) -> str:
    if why := astray(value):
        raise ValueError(f"{value!r} {why}")
    return value


FileName = Annotated[str, AfterValidator(_inner), StringConstraints(pattern=r"^[^/]+$")]
Folder = Annotated[str, AfterValidator(lambda value: value if value == "." else _inner(value))]
Loc = tuple[str | int, ...]
Kind = Literal["bug", "memory", "performance", "refactor", "report", "guard"]
Category = Literal[
    "graph safety",
    "tensor-wrapper dispatch",
    "kernel numerics and dimensions",
    "memory",
    "integration and dispatcher gaps",
    "compiler",
    "legality refactor",
]
Harm = Literal["wrong numbers", "crash", "memory", "slow", "trap"]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Release(Model):
    """A release of a distribution on the package index, for the interpreters that packs run on.

    ``sha``: the full SHA of the commit that it was cut from. ``python``: the Pythons that its metadata takes, a PEP 440
    specifier. ``artifacts``: {file name: sha256}.
    """

    sha: GitSha | None = None
    python: str | None = None
    artifacts: dict[FileName, Sha256] = Field(min_length=1)


Releases = dict[str, dict[str, Release]]  # {distribution: {release: what is known of it}}


class Build(Model):
    """How a host builds a source-only need: setup.py's environment, and C shims to build beside it."""

    environment: dict[str, str] = {}
    shims: list[Annotated[str, StringConstraints(pattern=r"^\w+\.c$")]] = []


class Need(Model):
    """A distribution that must be importable beside the code under test, unpacked and never installed.

    In needs.yaml ``only`` stands for ``artifacts``: a text that the names of the release's files have that are used.
    ``lane`` limits the need to that lane, ``trim`` keeps GPU code for that architecture only, and with ``build`` each
    host builds the sdist's C++ extension once.
    """

    distribution: str
    release: str
    artifacts: dict[FileName, Sha256] = Field(min_length=1)
    lane: Literal["cpu", "cuda"] | None = None
    trim: Annotated[str, StringConstraints(pattern=r"^sm_\d{2,3}$")] | None = None
    build: Build | None = None


class Pin(Model):
    """One named upstream tree: a release on the package index, a git SHA, or a release with the SHA it was cut from.

    pack.yaml names the release alone; its ``sha`` and ``artifacts`` come from releases.yaml.
    Two names have a fixed meaning: ``live`` has the bug and takes fix.patch if the pack has one; ``fixed`` is healthy.
    Any other pin is as ``expect`` says and takes the ``patch`` that it names. ``stacked_on`` names packs whose
    fix.patch is applied first, in both arms: the pin then has this bug without theirs.
    """

    release: str | None = None
    sha: GitSha | None = None
    artifacts: dict[FileName, Sha256] = {}
    source: str | None = None
    needs: list[str] = []
    patch: PatchName | None = None
    expect: Literal["bug", "healthy"] = "bug"
    stacked_on: list[int] = []

    @model_validator(mode="after")
    def _named(self) -> Pin:
        if self.release is None and self.sha is None:
            raise ValueError("a pin needs a release or a 40-hex sha")
        if self.release is not None and not self.artifacts:
            raise ValueError("a release pin needs artifacts: {file name: sha256}")
        return self

    @property
    def origin(self) -> Origin:
        """Where the pin's tree comes from: its release if it names one, else its commit."""
        if self.release:
            return Origin(kind="release", release=self.release, stacked_on=tuple(self.stacked_on))
        return Origin(kind="commit", sha=self.sha, stacked_on=tuple(self.stacked_on))

    def names(self, tree: Origin, distribution: str) -> bool:
        """Whether a tree of this origin is the pin's tree, on the same stacked packs."""
        if tree.kind == "release":
            same = tree.release == self.release and tree.distribution == distribution
        else:
            same = tree.kind == "commit" and tree.sha == self.sha and tree.distribution in (None, distribution)
        return same and not tree.dirty and tree.built is None and tree.stacked_on == tuple(self.stacked_on)


class Unreached(Model):
    """A line that the pack's patch adds and that a lane's hosts cannot run: its text, stripped, and why."""

    line: Annotated[str, StringConstraints(pattern=r"^\S(.*\S)?$")]
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Meant(Model):
    """What a fix changes on purpose beside the bug: call, fact and what becomes of it, by patterns of fnmatch."""

    call: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    fact: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    patched: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = "*"
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]

    def covers(self, *difference: str) -> bool:
        """Of a call, a fact, and what the patched tree does."""
        patterns = (self.call, self.fact, self.patched)
        return all(fnmatch.fnmatchcase(text, one) for text, one in zip(difference, patterns, strict=True))


class Lane(Model):
    """A kind of host that can run the pack. ``requires`` are importable modules; the limits are for each arm.

    The pack needs ``gpus`` GPUs. It uses as many as ``up_to_gpus`` if the host has them, and then runs alone. Every
    other line that a patch adds must run, ``unreached`` ones must not.
    """

    requires: list[str] = []
    capability: str | None = None
    gpus: int = 0
    up_to_gpus: int = 1
    timeout_s: int = 600
    memory_gib: float = 8.0
    max_age_days: int = 180
    unreached: list[Unreached] = []


class Upstream(Model):
    repo: Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")]
    distribution: str
    package: str
    licence: str
    source_root: Folder = "."
    python: str | None = None  # what its metadata asks for, where reproducer.py's header asks for less


class Thread(Model):
    """A public issue, pull request or commit with its upstream title.

    ``relation`` is to the pack's bug and, for "overlaps", to its fix. ``note`` describes the relation in our words.
    """

    url: Annotated[str, StringConstraints(pattern=r"^https://github\.com/[\w.-]+/[\w.-]+/(issues|pull|commit)/\w+$")]
    title: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    relation: Literal["reports it", "introduced it", "fixes it", "overlaps", "neighbour"]
    state: Literal["open", "closed", "merged"]
    looked_up: datetime.date
    note: str = ""

    @property
    def competes(self) -> bool:
        """Whether this is an open pull request for the same thing. Beside one, the pack files only a comment."""
        return self.state == "open" and "/pull/" in self.url and self.relation in ("fixes it", "overlaps")


class Search(Model):
    """The search for upstream threads, so that "none found" is a statement and not an omission."""

    found: Literal["threads", "none"]
    query: str
    date: datetime.date


class UpstreamState(Model):
    search: Search
    threads: list[Thread] = []
    filed: Literal["issue", "pr", "comment"] | None = None
    filed_url: str | None = None
    filed_on: datetime.date | None = None

    @model_validator(mode="after")
    def _consistent(self) -> UpstreamState:
        if len({self.filed is None, self.filed_url is None, self.filed_on is None}) > 1:
            raise ValueError("filed, filed_url and filed_on go together: a filed pack needs its URL and date")
        if (self.search.found == "threads") != bool(self.threads):
            raise ValueError("search.found must be 'threads' exactly when threads are listed")
        return self


class Filing(Model):
    """What to file and why. A comment belongs to ``thread``; the packs ``after`` are filed before this one.

    The text, its numbers and the attached patch are of the pin ``pin``; ``Pack.filing_pin`` has the default. A pull
    request adds tests.patch, or says why not: ``no_tests``. ``until``: what ends a hold, as somebody can look it up.
    """

    decision: Literal["issue", "pr", "comment", "hold", "none"]
    reason: str
    thread: str | None = None
    pin: PinName | None = None
    after: list[int] = []
    no_tests: str | None = None
    until: str | None = None

    @model_validator(mode="after")
    def _ended(self) -> Filing:
        if self.until is not None and self.decision != "hold":
            raise ValueError("until: it is what ends a hold, and the decision is another")
        return self


class Pack(Model):
    """One bug, its proof and its fix. ``folder`` holds its files.

    ``harm`` and ``effect`` say what the bug does to a run; a pack that ``names_bug`` has both.
    ``untrained``: {patch: {``FILE hunk N``: why no run of ``model/`` can execute it}}.
    """

    schema_version: Literal[1]
    number: int = Field(ge=1, le=999)
    title: str
    claim: str
    category: Category
    kind: Kind
    harm: Harm | None = None
    effect: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=110)] | None = None
    upstream: Upstream
    pins: dict[PinName, Pin]
    lanes: dict[Literal["cpu", "cuda"], Lane] = Field(min_length=1)
    no_lane: dict[Literal["cpu", "cuda"], str] = {}
    upstream_state: UpstreamState
    filing: Filing
    remove_when: str
    review_by: datetime.date
    untrained: dict[str, dict[str, str]] = {}
    meant: list[Meant] = []
    folder: Path = Field(exclude=True)

    @property
    def id(self) -> str:
        return f"pack{self.number:02d}"

    @property
    def names_bug(self) -> bool:
        """Whether there is a bug that an environment can be rid of: no refactor, no report that is held."""
        return self.kind != "refactor" and not (self.kind == "report" and self.filing.decision == "hold")

    @property
    def patch(self) -> Path:
        return self.folder / "fix.patch"

    @property
    def tests_patch(self) -> Path:
        """The tests that a pull request adds to upstream's own; no run reads it, so no receipt names it."""
        return self.folder / "tests.patch"

    def pin_name(self, at: str) -> str | None:
        """The name of the pin with the name, release or SHA ``at``, None if the pack has no such pin."""
        return next((name for name, pin in self.pins.items() if at in (name, pin.release, pin.sha)), None)

    def patch_at(self, at: str) -> Path | None:
        """The patch for the tree ``at``: the pin's own, or fix.patch for live, fixed and trees that no pin names."""
        name = self.pin_name(at)
        own = self.pins[name].patch if name else None
        if own is None and name not in ("live", "fixed", None):
            return None
        path = self.folder / (own or "fix.patch")
        return path if path.is_file() else None

    def healthy_at(self, at: str) -> bool:
        """Whether the pack expects no bug in the tree ``at``."""
        name = self.pin_name(at)
        return name == "fixed" or (name is not None and self.pins[name].expect == "healthy")

    @property
    def filing_pin(self) -> str:
        """The name of the pin that is filed: the one in ``filing``, else ``main`` if the pack has it, else ``live``."""
        return self.filing.pin or ("main" if "main" in self.pins else "live")

    def owns(self, url: str) -> bool:
        """Whether a URL belongs to the pack's upstream repository."""
        return url.lower().startswith(f"https://github.com/{self.upstream.repo}/".lower())

    @property
    def reproducer(self) -> Path:
        return self.folder / "reproducer.py"

    @model_validator(mode="after")
    def _cross_checked(self) -> Pack:
        if not self.folder.name.startswith(f"{self.number:02d}_"):
            raise ValueError(f"number {self.number} does not match its folder {self.folder.name}")
        if "live" not in self.pins:
            raise ValueError("pins.live is required")
        if "upstream" in self.pins:
            raise ValueError('no pin may be named "upstream": receipts call a folder without a pin so')
        if self.names_bug and (self.harm is None or self.effect is None):
            raise ValueError("a pack that names a bug needs harm and effect: what it does to a run, in one line")
        if self.kind == "refactor" and (self.harm or self.effect):
            raise ValueError("harm, effect: a refactor names no bug")
        if self.kind == "guard" and "fixed" not in self.pins:
            raise ValueError("a guard needs a fixed pin")
        if self.kind in ("bug", "memory", "performance", "refactor") and not self.patch.is_file():
            raise ValueError(f"kind {self.kind} needs {self.folder.name}/fix.patch")
        if self.kind in ("report", "guard") and self.patch.is_file():
            raise ValueError(f"kind {self.kind} offers no fix, yet {self.folder.name}/fix.patch exists")
        if not self.reproducer.is_file():
            raise ValueError(f"{self.folder.name}/reproducer.py is missing")
        for name, pin in self.pins.items():
            if pin.patch is not None and not (self.folder / pin.patch).is_file():
                raise ValueError(f"pins.{name}.patch: {self.folder.name}/{pin.patch} is missing")
        if self.filing.pin is not None and (self.filing.pin not in self.pins or self.healthy_at(self.filing.pin)):
            broken = ", ".join(name for name in self.pins if not self.healthy_at(name))
            raise ValueError(f"filing.pin: {self.filing.pin!r} is not one of the pins with the bug: {broken}")
        if self.filing.thread is not None and not self.owns(self.filing.thread):
            raise ValueError(f"filing.thread: {self.filing.thread} is not of {self.upstream.repo}")
        for name in self.untrained:
            if not (self.folder / name).is_file():
                raise ValueError(f"untrained: {self.folder.name}/{name} is missing")
        missing = {"cpu", "cuda"} - set(self.lanes) - set(self.no_lane)
        if missing:
            raise ValueError(f"lane {', '.join(sorted(missing))} is absent: say why under no_lane")
        return self


def line_of(text: str, loc: tuple[Any, ...]) -> int:
    """The line, from 1, of the field at ``loc`` or of its nearest existing parent."""
    node, line = _composed(text), 1
    for key in loc:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(key)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line + 1
        else:
            break
    return line


@functools.lru_cache(maxsize=64)
def _composed(text: str) -> Any:
    return yaml.compose(text, Loader=Once)


@functools.lru_cache(maxsize=64)
def parsed(source: str) -> ast.Module:
    """The module of Python ``source``, shared by all who ask: to be read, never changed. SyntaxError if it is none."""
    return ast.parse(source)


def text_of(path: Path) -> str:
    """The text of a UTF-8 file. Raises PatchlaneError if it is in another encoding, no file or beyond all size."""
    try:
        return bytes_of(path).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise PatchlaneError(f"{path}: not UTF-8 at byte {error.start}", "save it as UTF-8, or git status") from error


class Once(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader, which refuses a key that a mapping has twice: YAML forbids it, and the last one would count.

    ``<<`` is refused too: it brings keys of which others beside it would hide some.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, "<< is not taken: write the keys", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> tuple[str, Any]:
    """(text, value) of a YAML file. Raises PatchlaneError with file and line if it is missing or malformed,
    has a key twice, or is nested beyond DEEPEST levels."""
    try:
        text = text_of(path)
        return text, pickle.loads(_parsed(path, text))
    except OSError as error:
        raise PatchlaneError(f"{path}: cannot be read ({error.strerror})", "git status") from error
    except ValueError as error:  # of a date that there is not; the loader names no line
        raise PatchlaneError(f"{path}: {error}", "correct the date in it") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise PatchlaneError(f"{path}{where}: {problem}", "correct the YAML at that line") from error


@functools.lru_cache(maxsize=256)
def _parsed(path: Path, text: str) -> bytes:
    """The file's value, pickled: a verb asks for the packs several times, and whoever asks may change what they get."""
    _refuse_depth(path, text)
    return pickle.dumps(yaml.load(text, Loader=Once))


def _refuse_depth(path: Path, text: str) -> None:
    """The loader calls itself for each level; the parser, which does not, sees before that there are too many."""
    depth = 0
    for event in yaml.parse(text, Loader=Once):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            where = f"{path}:{event.start_mark.line + 1}"  # type: ignore[union-attr]
            raise PatchlaneError(f"{where}: nested deeper than {DEEPEST} levels", "no field has so many: git status")


def explain(path: Path, text: str, error: ValidationError) -> PatchlaneError:
    """One error with every fault of a record, each as ``file:line: field: fault``."""
    rows = []
    for fault in error.errors():
        field = ".".join(map(str, fault["loc"])) or "(whole file)"
        message = fault["msg"].removeprefix("Value error, ")
        rows.append(f"{path}:{line_of(text, fault['loc'])}: {field}: {message}")
    return PatchlaneError("\n".join(rows), "correct the fields named above; docs/writing-a-pack.md lists them")


def load_pack(folder: Path) -> Pack:
    """The pack in a folder. Raises PatchlaneError with file, line and field of each fault of its pack.yaml."""
    path = folder / "pack.yaml"
    text, data = read_yaml(path)
    if not isinstance(data, dict):
        raise PatchlaneError(f"{path}:1: expected a mapping", "see docs/writing-a-pack.md")
    try:
        pack = Pack.model_validate({**_with_releases(path, text, data), "folder": folder})
    except ValidationError as error:
        raise explain(path, text, error) from error
    known = load_needs(folder.parent)
    for name, pin in pack.pins.items():
        for need in pin.needs:
            if need not in known:
                line = line_of(text, ("pins", name, "needs"))
                raise PatchlaneError(
                    f"{path}:{line}: pins.{name}.needs: {need!r} is not in needs.yaml",
                    f"one of: {', '.join(sorted(known))}",
                )
    return pack


def _with_releases(path: Path, text: str, data: dict[str, Any]) -> dict[str, Any]:
    """What a pack.yaml says, its pins with what releases.yaml has of their releases."""
    upstream, named = data.get("upstream"), data.get("pins")
    if not isinstance(upstream, dict) or not isinstance(named, dict):
        return data
    distribution, releases = upstream.get("distribution"), load_releases(path.parent.parent)
    pins = {
        name: resolved(Place(path, text, ("pins", name)), pin, distribution, releases) for name, pin in named.items()
    }
    return {**data, "pins": pins}


@functools.lru_cache
def load_needs(folder: Path) -> dict[str, list[Need]]:
    """{name: needs} of the sets in ``needs.yaml`` beside the packs. Raises PatchlaneError if it is malformed."""
    path = folder / "needs.yaml"
    if not path.exists():
        return {}
    text, data = read_yaml(path)
    sets = data or {}
    if isinstance(sets, dict):
        sets = {
            name: [_need(Place(path, text, (name, n)), one) for n, one in enumerate(members)]
            for name, members in sets.items()
            if isinstance(members, list)
        } | {name: members for name, members in sets.items() if not isinstance(members, list)}
    try:
        return TypeAdapter(dict[str, list[Need]]).validate_python(sets)
    except ValidationError as error:
        raise explain(path, text, error) from error


def _need(place: Place, record: Any) -> Any:
    """A need with the files of its release, of which ``only`` leaves those with this text in their names."""
    if not isinstance(record, dict):
        return record
    only, rest = record.get("only", ""), {name: value for name, value in record.items() if name != "only"}
    distribution = record.get("distribution")
    whole = resolved(place, rest, distribution, load_releases(place.path.parent), with_sha=False)
    if whole is rest:
        return record
    files = {name: sha256 for name, sha256 in whole["artifacts"].items() if str(only) in name}
    if only and not files:
        what = f"no file of {distribution} {record.get('release')} has {only!r} in its name"
        raise place.fault("only", what, f"take it out, or write what one of its names in {RELEASES} has")
    return {**whole, "artifacts": files}


@functools.lru_cache
def load_releases(folder: Path) -> Releases:
    """The releases in ``releases.yaml`` beside the packs. Raises PatchlaneError with file, line and field of each
    fault."""
    path = folder / RELEASES
    if not path.exists():
        return {}
    text, data = read_yaml(path)
    try:
        return TypeAdapter(Releases).validate_python(data or {})
    except ValidationError as error:
        raise explain(path, text, error) from error


class Place(NamedTuple):
    """Where a record stands: its file, the file's text, and the fields that lead to it."""

    path: Path
    text: str
    loc: Loc

    def fault(self, field: str, what: str, remedy: str) -> PatchlaneError:
        """A fault of one field of the record, as ``explain`` has it."""
        loc = (*self.loc, field)
        return PatchlaneError(f"{self.path}:{line_of(self.text, loc)}: {'.'.join(map(str, loc))}: {what}", remedy)


def resolved(place: Place, record: Any, distribution: Any, releases: Releases, with_sha: bool = True) -> Any:
    """A record that names a release, with the release's files and SHA from releases.yaml; another one as it is.

    Raises PatchlaneError for a release that is not there, and for files or a SHA that the record has of its own.
    """
    if not isinstance(record, dict) or not isinstance(release := record.get("release"), str):
        return record
    if own := next((field for field in ("sha", "artifacts") if field in record), None):
        remedy = f"take it out; python -m reproducers.release {distribution} {release} writes it there"
        raise place.fault(own, f"a release's SHA and files stand in {RELEASES}", remedy)
    found = releases.get(str(distribution), {}).get(release)
    if found is None:
        command = f"python -m reproducers.release {distribution} {release}"
        raise place.fault("release", f"{RELEASES} has no {distribution} {release}", command)
    return {**record, **({"sha": found.sha} if with_sha else {}), "artifacts": found.artifacts}


def load_packs(root: Path | None = None) -> list[Pack]:
    """All packs by number. Raises PatchlaneError with every fault of every pack; a number used twice is one."""
    packs, faults = load_each(root)
    refuse(faults)
    return packs


def refuse(faults: list[PatchlaneError]) -> None:
    """Raise the faults, if there are any, as one PatchlaneError."""
    if faults:
        raise PatchlaneError("\n".join(fault.what for fault in faults), faults[0].remedy)


def load_each(root: Path | None = None) -> tuple[list[Pack], list[PatchlaneError]]:
    """(the readable packs by number, the faults of the others). A numbered folder with files is a pack."""
    packs, faults = list[Pack](), list[PatchlaneError]()
    for folder in _folders(root):
        try:
            packs.append(load_pack(folder))
        except PatchlaneError as error:
            faults.append(error)
    for before, after in itertools.pairwise(packs):
        if before.number == after.number:
            faults.append(_twice(before.folder, after.folder))
    return packs, faults


def load_named(names: list[str], root: Path | None = None) -> list[Pack]:
    """Packs named as ``pack05``, ``05`` or ``5``, in the order given. Reads no other pack.

    Raises PatchlaneError for a pack that is unknown or cannot be read.
    """
    chosen = []
    for name in names:
        number = _number(name)
        folders = [folder for folder in _folders(root) if folder.name.startswith(f"{number:02d}_")]
        if not folders:
            raise _unknown(name)
        if len(folders) > 1:
            raise _twice(*folders[:2])
        chosen.append(load_pack(folders[0]))
    return chosen


def _number(name: str) -> int:
    """The number in ``pack05``, ``05`` or ``5``. Raises PatchlaneError for another name."""
    match = re.fullmatch(r"(?:pack)?0*(\d+)", name)
    if match is None:
        raise _unknown(name)
    return int(match[1])


def _unknown(name: str) -> PatchlaneError:
    return PatchlaneError(f"no pack {name!r}", "python -m reproducers.run --list")


def _folders(root: Path | None) -> list[Path]:
    """Folders of packs: they hold a pack.yaml, or have a number and more than bytecode in them."""
    folders = sorted(path for path in (root or ROOT / "packs").glob("*") if path.is_dir())
    return [
        folder
        for folder in folders
        if (folder / "pack.yaml").exists()
        or (re.match(r"\d+_", folder.name) and any(path.name != "__pycache__" for path in folder.iterdir()))
    ]


def _twice(first: Path, second: Path) -> PatchlaneError:
    number = int(first.name.partition("_")[0])
    return PatchlaneError(f"number {number} is used by {first} and {second}", "give one of them another number")


def select(names: list[str], packs: list[Pack]) -> list[Pack]:
    """Packs named as ``pack05``, ``05`` or ``5``, in the order given. Raises PatchlaneError for an unknown pack."""
    by_number = {pack.number: pack for pack in packs}
    if unknown := [name for name in names if _number(name) not in by_number]:
        raise _unknown(unknown[0])
    return [by_number[_number(name)] for name in names]
