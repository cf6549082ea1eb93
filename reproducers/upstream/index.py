"""The package index: which files a release has, and their bytes by sha256. Heavy imports stay inside the calls."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from patchlane.base import clock
from patchlane.base.errors import CannotTestHere
from patchlane.base.exits import Exit

Progress = Callable[[str, int, int], None]
ONLINE = "run without --offline and PATCHLANE_OFFLINE"
BUNDLED = f"{ONLINE}, or: python -m reproducers.bundle install PART..."
SHOWN = 8  # releases that a message lists


class NoSuchRelease(CannotTestHere):
    """The index answers and has no such distribution or release: the request is wrong, not the host."""

    exit_code = Exit.USAGE


def _client() -> Any:
    """A client of the index that pip or uv would use (PIP_INDEX_URL / UV_INDEX_URL). It trusts the system's CAs.

    Raises CannotTestHere under PATCHLANE_OFFLINE=1. Callers make this client before they import requests, whose import
    opens a socket.
    """
    if os.environ.get("PATCHLANE_OFFLINE") == "1":
        raise CannotTestHere(
            "the run is offline and asks no package index",
            BUNDLED,
        )
    import truststore
    from pypi_simple import PYPI_SIMPLE_ENDPOINT, PyPISimple

    truststore.inject_into_ssl()
    endpoint = os.environ.get("PIP_INDEX_URL") or os.environ.get("UV_INDEX_URL") or PYPI_SIMPLE_ENDPOINT
    client = PyPISimple(endpoint)
    limit_requests(client.s)
    return client


def limit_requests(session: Any) -> None:
    """Give each request of a session of requests that states no limit ANSWER_S to connect and for each piece."""
    ask = session.request

    def limited(method: str, url: str, **options: Any) -> Any:
        options["timeout"] = options.get("timeout") or clock.ANSWER_S
        return ask(method, url, **options)

    session.request = limited


def unreachable(distribution: str, timeout_s: float = 5) -> str:
    """Why the index does not answer for ``distribution``, "" if it does. Sends one small request."""
    try:
        client = _client()
    except CannotTestHere as error:
        return error.what
    from requests import RequestException

    try:
        with client:
            client.s.head(client.get_project_url(distribution), timeout=timeout_s).raise_for_status()
    except RequestException as error:
        return _short(error)
    return ""


def _packages(client: Any, distribution: str) -> list[Any]:
    """All files of a distribution. Raises NoSuchRelease if the index has no distribution of this name."""
    from pypi_simple import NoSuchProjectError

    try:
        return list(client.get_project_page(distribution).packages)
    except NoSuchProjectError as error:
        raise NoSuchRelease(
            f"the package index has no distribution {distribution}", "name it as pip install does"
        ) from error


def _listed(distribution: str) -> list[Any]:
    """The files of a distribution on the index. Raises CannotTestHere if the index does not answer."""
    client = _client()
    from requests import RequestException

    try:
        with client:
            return _packages(client, distribution)
    except RequestException as error:
        raise CannotTestHere(f"the package index cannot be reached: {_short(error)}", "check the network") from error


def release_files(distribution: str, release: str) -> dict[str, str]:
    """{file name: sha256} of a release as the index states them.

    Raises CannotTestHere if the index does not answer, NoSuchRelease if it has no such release; this error lists the
    newest releases, newest first.
    """
    packages = _listed(distribution)
    files = {p.filename: p.digests["sha256"] for p in packages if p.version == release and "sha256" in p.digests}
    if not files:
        newest = sorted({p.version for p in packages if p.version}, key=_order, reverse=True)[:SHOWN]
        raise NoSuchRelease(f"{distribution} has no release {release}", f"take one of the newest: {', '.join(newest)}")
    return files


def python_of(distribution: str, release: str) -> str | None:
    """The Pythons that a release takes by its metadata, as the index repeats it; None where it says nothing.

    Raises CannotTestHere if the index does not answer.
    """
    stated = [p.requires_python for p in _listed(distribution) if p.version == release]
    return next((str(said) for said in stated if said), None)


class Published(NamedTuple):
    """A release as the index has it: {file name: sha256}, the UTC day of its first file, whether it was withdrawn.

    ``day`` is None where the index states no times.
    """

    files: dict[str, str]
    day: datetime.date | None
    yanked: bool


def releases(distribution: str) -> dict[str, Published]:
    """{release: what the index has of it}, by version, oldest first. CannotTestHere as ``release_files`` raises it."""
    packages = _listed(distribution)
    grouped: dict[str, list[Any]] = {}
    for package in packages:
        if package.version and "sha256" in package.digests:
            grouped.setdefault(package.version, []).append(package)
    return {release: _published(grouped[release]) for release in sorted(grouped, key=_order)}


def _published(packages: list[Any]) -> Published:
    days = [package.upload_time.date() for package in packages if package.upload_time]
    files = {package.filename: package.digests["sha256"] for package in packages}
    return Published(files, min(days, default=None), all(package.is_yanked for package in packages))


def _order(release: str) -> Version:
    """The sort key of a release. A name that is no version sorts before every version."""
    try:
        return Version(release)
    except InvalidVersion:
        return Version("0.dev0")


def sizes(files: set[tuple[str, str]]) -> dict[str, int]:
    """{file name: size in bytes} of ``files``, each (distribution, file name), where the index states the size."""
    from requests import RequestException

    stated: dict[str, int] = {}
    with _client() as client:
        for distribution in sorted({distribution for distribution, _ in files}):
            wanted = {filename for name, filename in files if name == distribution}
            try:
                packages = _packages(client, distribution)
            except (RequestException, NoSuchRelease):
                continue
            stated |= {p.filename: p.size for p in packages if p.filename in wanted and p.size is not None}
    return stated


def download(distribution: str, filename: str, target: Path, progress: Progress) -> None:
    """Fetch one file of a distribution to ``target``; the caller checks its digest. Raises CannotTestHere."""
    client = _client()
    from requests import RequestException

    try:
        with client:
            package = _package(client, distribution, filename)
            client.download_package(package, target, verify=False, progress=_reporter(filename, progress))
    except RequestException as error:
        raise CannotTestHere(
            f"{filename} cannot be fetched: {_short(error)}",
            "check the network, or install a bundle: python -m reproducers.bundle install PART...",
        ) from error


class NoParts(CannotTestHere):
    """The index serves a file only whole."""


class Parts(NamedTuple):
    """A wheel on the index of which parts are fetched as they are read, and how many bytes that took until now."""

    wheel: zipfile.ZipFile
    fetched: Callable[[], int]


def size(distribution: str, filename: str) -> int | None:
    """A file's bytes, as the index or, where that does not say, the file's server states them; None without an answer.

    Raises CannotTestHere under PATCHLANE_OFFLINE=1.
    """
    client = _client()
    from requests import RequestException

    try:
        with client:
            package = _package(client, distribution, filename)
            if package.size is not None:
                return int(package.size)
            stated = client.s.head(package.url, allow_redirects=True).headers.get("Content-Length")
            return int(stated) if stated else None
    except (RequestException, ValueError):
        return None


@contextlib.contextmanager
def parts(distribution: str, filename: str) -> Iterator[Parts]:
    """A wheel on the index, to read a few of its files without the rest. Each file read has the CRC of the wheel's
    table; the digest of the whole wheel is not compared.

    Raises NoParts where the index serves no parts, CannotTestHere where it does not answer or what it sends is no
    wheel.
    """
    client = _client()
    from remotezip import RangeNotSupported, RemoteFetcher, RemoteZip, RemoteZipError
    from requests import RequestException

    count = [0]

    class Counting(RemoteFetcher):  # type: ignore[misc]
        def _request(self, options: Any) -> Any:
            raw, stated = super()._request(options)
            return _Counted(raw, count, filename), stated

    try:
        with client:
            package = _package(client, distribution, filename)
            # what is packed a second time on its way would be other bytes than those of the range
            plain = {"Accept-Encoding": "identity"}
            with RemoteZip(package.url, session=client.s, fetcher=Counting, headers=plain) as wheel:
                yield Parts(wheel, lambda: count[0])
    except RangeNotSupported as error:
        raise NoParts(f"{filename}: the index serves it only whole", "--download fetches it whole") from error
    except (RequestException, RemoteZipError, zipfile.BadZipFile, EOFError) as error:
        raise CannotTestHere(
            f"{filename} cannot be read: {_short(error)}", "check the network, or --download"
        ) from error


class _Counted:
    """A response's bytes, counted, with an end of patience: a server that sends a byte now and then is silent, too."""

    def __init__(self, raw: Any, count: list[int], filename: str) -> None:
        self.raw, self.count, self.filename, self.began = raw, count, filename, time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def read(self, wanted: int) -> bytes:
        data = bytearray()
        while len(data) < wanted and (piece := self.raw.read1(wanted - len(data))):
            data += piece
            if time.monotonic() - self.began > clock.STEP_S:
                raise CannotTestHere(f"{self.filename}: no end within {clock.STEP_S:g} s", "run again later")
        self.count[0] += len(data)
        return bytes(data)


def _package(client: Any, distribution: str, filename: str) -> Any:
    package = next((p for p in _packages(client, distribution) if p.filename == filename), None)
    if package is None:
        raise CannotTestHere(f"the index no longer has {filename}", "update its release in packs/releases.yaml")
    return package


def _reporter(filename: str, progress: Progress) -> Any:
    class Tracker:
        def __init__(self, size: int | None) -> None:
            self.size, self.done, self.began = size or 0, 0, time.monotonic()

        def __enter__(self) -> Tracker:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def update(self, count: int) -> None:
            self.done += count
            if time.monotonic() - self.began > clock.FETCH_S:  # a server that sends a byte now and then is silent, too
                raise CannotTestHere(f"{filename}: {self.done} of {self.size} bytes in {clock.FETCH_S:g} s", BUNDLED)
            progress(filename, self.done, self.size)

    return Tracker


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]
