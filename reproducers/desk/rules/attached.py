"""Whoever gets the single file can install what its header lists."""

from __future__ import annotations

import email
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.specifiers import SpecifierSet

from patchlane.base.errors import PatchlaneError
from reproducers.desk.attachment import export
from reproducers.desk.patches.trees import tree_of
from reproducers.desk.rules.case import Case
from reproducers.desk.rules.registry import Breach, Skip, rule
from reproducers.desk.text.lookups import again
from reproducers.record.schema import text_of

PYTHONS = [f"3.{minor}" for minor in range(9, 20)]


@rule("header-python", "the attached file asks for a Python that its upstream takes, as the upstream's metadata says")
def python(case: Case) -> Iterator[Breach | Skip]:
    pack, pin = case.pack, case.pack.pins["live"]
    tree = tree_of(pack, pin, case.store)
    try:
        header, *_ = export.split(text_of(pack.reproducer))
    except (PatchlaneError, SyntaxError):
        return
    asked = required(tree) if tree else None
    if tree is None:
        yield Skip(f"{pin.origin} is not in the store: {again(pack, sorted(pack.lanes)[0], 'live').partition(',')[0]}")
    elif asked is not None:
        listed = tomllib.loads("".join(line[2:] for line in header.splitlines(keepends=True)[1:-1]))
        own = SpecifierSet(pack.upstream.python or listed.get("requires-python", ""))
        refused = [version for version in PYTHONS if version in own and version not in asked]
        if refused:
            what = f"the header takes Python {refused[0]}, {pack.upstream.distribution} asks for {asked}"
            yield Breach(pack.reproducer, 2, what, f'packs/{pack.folder.name}/pack.yaml, upstream.python: "{asked}"')


def required(tree: Path) -> SpecifierSet | None:
    """``Requires-Python`` of the distribution in a tree: a wheel's, an sdist's, a checkout's; None without it."""
    for path in [*sorted(tree.glob("*.dist-info/METADATA")), tree / "PKG-INFO"]:
        if path.is_file():
            said = email.message_from_string(text_of(path))["Requires-Python"]
            return SpecifierSet(said) if said else None
    project = tree / "pyproject.toml"
    said = tomllib.loads(text_of(project)).get("project", {}).get("requires-python") if project.is_file() else None
    return SpecifierSet(said) if said else None
