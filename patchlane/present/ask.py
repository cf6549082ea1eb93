"""What an interpreter would import, without running any of it: a script that ``python -I -S`` runs, prints JSON.

Needs the standard library of Python 3.8 and nothing else. With ``-S`` neither ``sitecustomize`` nor a line of a
``.pth`` file runs; this module reads those files instead, and names what it does not understand of them. Its argument
is ``{"packages": [...], "distributions": [...], "first": [folders of PYTHONPATH], "user": whether the user's own
folder counts}``.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import json
import os
import re
import site
import stat
import sys
from pathlib import Path
from typing import Any

LARGEST = 2**20  # bytes of a file of metadata, a .pth or a finder
FINDER = re.compile(r"import (__editable__\w+finder); ?\1\.install\(\)")  # of setuptools' editable installs
HARMLESS = re.compile(  # whole start-up lines that change no import of a package: setuptools', virtualenv's, coverage's
    r"import os; ?var = 'SETUPTOOLS_USE_DISTUTILS'; ?enabled = os\.environ\.get\(var, '(local|stdlib)'\) == 'local'"
    r"(; ?enabled and __import__\('_distutils_hack'\)(\.add_shim\(\))?)?;?|import _virtualenv|import _distutils_hack"
    r"|(import sys; exec\(')?import coverage; coverage\.process_startup\(\)('\))?"
)


def read(path: Path) -> str:
    """A small regular file's text; "" for any other, which is not opened to be read."""
    try:
        handle = os.open(str(path), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return ""
    try:
        seen = os.fstat(handle)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > LARGEST:
            return ""
        return os.read(handle, LARGEST).decode("utf-8", "replace")
    finally:
        os.close(handle)


class Search:
    """Folders in the order of an import, packages that editable installs map, and start-up lines not understood."""

    def __init__(self) -> None:
        self.path: list[str] = []
        self.mapped: dict[str, str] = {}
        self.unread: list[list[Any]] = []

    def add_site(self, folder: str) -> None:
        """A folder of packages with its .pth files, as ``site`` takes it, but that no line is run."""
        if folder in self.path or not Path(folder).is_dir():
            return
        self.path.append(folder)
        for name in sorted(place.name for place in Path(folder).iterdir()):
            if name.endswith(".pth") and not name.startswith("."):
                self._pth(Path(folder) / name)
        self._customized(folder)

    def _customized(self, folder: str) -> None:
        for name in ("sitecustomize", "usercustomize"):
            for place in (Path(folder) / (name + ".py"), Path(folder) / name):
                if place.exists():
                    self.unread.append([str(place), 1, name, "runs whenever this Python starts"])

    def _pth(self, file: Path) -> None:
        text = read(file)
        if not text and file.stat().st_size:
            self.unread.append([str(file), 1, file.name, "is too large to be read, or no file"])
        for number, line in enumerate(text.splitlines(), 1):
            plain = line.strip()
            found = FINDER.fullmatch(plain)
            if found:
                self._finder(file, number, file.parent / (found.group(1) + ".py"))
            elif re.match(r"import\s", plain):
                if not HARMLESS.fullmatch(plain):
                    self.unread.append([str(file), number, plain, "runs whenever this Python starts"])
            elif plain and not plain.startswith("#"):
                self.add_plain(str((file.parent / plain).resolve()))

    def add_plain(self, folder: str, standard: bool = False) -> None:
        """A folder of the import path; an archive there is named, for it is not read. ``standard``: of Python's own."""
        if Path(folder).is_file() and not standard:
            self.unread.append([folder, 1, Path(folder).name, "an archive on the import path is not read"])
        if folder not in self.path and Path(folder).is_dir():
            self.path.append(folder)

    def _finder(self, file: Path, number: int, finder: Path) -> None:
        """``MAPPING: dict[str, str] = {...}`` of setuptools' finder, read as a literal."""
        try:
            for node in ast.parse(read(finder)).body:
                target = (
                    node.target
                    if isinstance(node, ast.AnnAssign)
                    else node.targets[0]
                    if isinstance(node, ast.Assign)
                    else None
                )
                if isinstance(target, ast.Name) and target.id == "MAPPING":
                    found = ast.literal_eval(node.value)  # type: ignore[attr-defined]
                    self.mapped.update({str(name): str(place) for name, place in found.items()})
                    return
        except (SyntaxError, ValueError, AttributeError):
            pass
        self.unread.append([str(file), number, finder.name, "maps packages in a way that is not read"])

    def package(self, name: str) -> list[str]:
        """The folders of a package, as a finder at the end of the import path completes them."""
        try:
            spec = importlib.machinery.PathFinder.find_spec(name, self.path)
        except (ImportError, ValueError):
            spec = None
        if spec is not None and spec.submodule_search_locations is not None:
            return [str(Path(place).resolve()) for place in spec.submodule_search_locations]
        if spec is not None and spec.origin:
            self.unread.append([str(spec.origin), 1, name, "a module stands where the package would be"])
        mapped = self.mapped.get(name)
        if mapped:
            return [str(Path(mapped).resolve())]
        inner = {key: place for key, place in self.mapped.items() if key.startswith(name + ".")}
        return sorted({str(Path(place).resolve().parent) for place in inner.values()})

    def versions(self, name: str) -> list[list[str]]:
        """[version, folder of its files] of each set of metadata of a distribution, in the order of an import."""
        found = []
        plain = re.sub(r"[-_.]+", "-", name).lower()
        for folder in self.path:
            for entry in sorted(place.name for place in Path(folder).iterdir()) if Path(folder).is_dir() else []:
                match = re.fullmatch(r"(.+?)(?:-([^-]+?))?(?:-py3[.\d]*)?\.(dist|egg)-info", entry)
                if match and re.sub(r"[-_.]+", "-", match.group(1)).lower() == plain:
                    info = Path(folder) / entry
                    text = read(info / ("METADATA" if match.group(3) == "dist" else "PKG-INFO")) or read(info)
                    stated = re.search(r"^Version:[ \t]*(\S+)", text.split("\n\n")[0], re.MULTILINE)
                    version = stated.group(1) if stated else match.group(2)
                    if version:
                        found.append([version, str(Path(folder).resolve())])
        return found


def described(packages: list[str], distributions: list[str], search: Search) -> dict[str, Any]:
    """{"packages": {name: folders}, "distributions": {name: [[version, folder], ...]}, "unread": [...]}.

    Absent ones are left out.
    """
    folders = {name: search.package(name) for name in packages}
    versions = {name: search.versions(name) for name in distributions}
    return {
        "packages": {name: found for name, found in folders.items() if found},
        "distributions": {name: found for name, found in versions.items() if found},
        "unread": search.unread,
    }


def of_interpreter(first: list[str], user: bool) -> Search:
    """What the interpreter that runs this would search: PYTHONPATH, its standard library, its folders of packages."""
    search = Search()
    for folder in first:
        search.add_plain(str(Path(folder).resolve()))
        search._customized(str(Path(folder).resolve()))
    for folder in sys.path:
        search.add_plain(str(Path(folder).resolve()) if folder else str(Path.cwd()), standard=True)
    home = next((x for x in list(Path(sys.executable).absolute().parents)[:2] if (x / "pyvenv.cfg").is_file()), None)
    outer = True
    if home is not None:
        said = read(home / "pyvenv.cfg").lower().replace(" ", "")
        outer = "include-system-site-packages=true" in said
        for folder in site.getsitepackages([str(home)]):
            search.add_site(folder)
    if outer and user:
        search.add_site(site.getusersitepackages())
    if outer:
        for folder in site.getsitepackages([sys.base_prefix, sys.base_exec_prefix]):
            search.add_site(folder)
    return search


def of_folder(folder: str) -> Search:
    """One folder of packages; ``.pth`` files count in a site-packages folder only, as in an import."""
    search = Search()
    if Path(folder).name in ("site-packages", "dist-packages"):
        search.add_site(folder)
    else:
        search.add_plain(folder)
    return search


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(
        json.dumps(described(asked["packages"], asked["distributions"], of_interpreter(asked["first"], asked["user"])))
    )
