"""The package index: which files a release has, and their bytes by sha256. Heavy imports stay inside the calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reproducers.errors import CannotTestHere

Progress = Callable[[str, int, int], None]


def _client() -> Any:
    """A client of the index that pip or uv would use (PIP_INDEX_URL / UV_INDEX_URL), trusting the system's CAs."""
    import truststore
    from pypi_simple import PYPI_SIMPLE_ENDPOINT, PyPISimple

    truststore.inject_into_ssl()
    endpoint = os.environ.get("PIP_INDEX_URL") or os.environ.get("UV_INDEX_URL") or PYPI_SIMPLE_ENDPOINT
    return PyPISimple(endpoint)


def unreachable(distribution: str, timeout_s: float = 5) -> str:
    """Why the index does not answer for ``distribution``, "" when it does. One small request."""
    from requests import RequestException

    try:
        with _client() as client:
            client.s.head(client.get_project_url(distribution), timeout=timeout_s).raise_for_status()
    except RequestException as error:
        return _short(error)
    return ""


def release_files(distribution: str, release: str) -> dict[str, str]:
    """{file name: sha256} of a release as the index states them; CannotTestHere when there is none or no network."""
    from requests import RequestException

    try:
        with _client() as client:
            packages = client.get_project_page(distribution).packages
    except RequestException as error:
        raise CannotTestHere(f"the package index cannot be reached: {_short(error)}", "check the network") from error
    files = {p.filename: p.digests["sha256"] for p in packages if p.version == release and "sha256" in p.digests}
    if not files:
        known = sorted({p.version for p in packages if p.version})
        raise CannotTestHere(f"{distribution} has no release {release}", f"one of: {', '.join(known[-8:])}")
    return files


def sizes(files: set[tuple[str, str]]) -> dict[str, int]:
    """{file name: bytes} of ``files``, (distribution, file name) each, as far as the index answers and states them."""
    from requests import RequestException

    found: dict[str, int] = {}
    with _client() as client:
        for distribution in sorted({distribution for distribution, _ in files}):
            wanted = {filename for name, filename in files if name == distribution}
            try:
                packages = client.get_project_page(distribution).packages
            except RequestException:
                continue
            found |= {p.filename: p.size for p in packages if p.filename in wanted and p.size is not None}
    return found


def download(distribution: str, filename: str, target: Path, progress: Progress) -> None:
    """Fetch one file of a distribution to ``target``; the caller checks its digest. CannotTestHere on failure."""
    from requests import RequestException

    try:
        with _client() as client:
            page = client.get_project_page(distribution)
            package = next((p for p in page.packages if p.filename == filename), None)
            if package is None:
                raise CannotTestHere(f"the index no longer has {filename}", "update the pin in pack.yaml")
            client.download_package(package, target, verify=False, progress=_reporter(filename, progress))
    except RequestException as error:
        raise CannotTestHere(
            f"{filename} cannot be fetched: {_short(error)}",
            "check the network, or install a bundle: python -m reproducers.bundle install PART...",
        ) from error


def _reporter(filename: str, progress: Progress) -> Any:
    class Tracker:
        def __init__(self, size: int | None) -> None:
            self.size, self.done = size or 0, 0

        def __enter__(self) -> Tracker:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def update(self, count: int) -> None:
            self.done += count
            progress(filename, self.done, self.size)

    return Tracker


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]
