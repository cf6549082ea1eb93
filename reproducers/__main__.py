"""The list of verbs. ``python -m reproducers``."""

from __future__ import annotations

import ast
import re
from pathlib import Path


def verbs(folder: Path) -> dict[str, str]:
    """{verb: the first sentence of what it says of itself} of the modules of a package that can be run."""
    found = {}
    for path in sorted([*folder.glob("[a-z]*.py"), *folder.glob("*/__main__.py")]):
        text = path.read_text(encoding="utf-8")
        if "guarded(" in text and "def guarded" not in text:
            name = path.stem if path.parent == folder else path.parent.name
            said = " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split())
            said = re.sub(r"^``.*?``.*?: ", "", said).split(". ")[0].rstrip(".")
            found[name] = said[:1].upper() + said[1:]
    return found


def show(package: str, folder: Path) -> None:
    """Print a package's verbs, one line each."""
    rows = {f"python -m {package}.{name}": said for name, said in verbs(folder).items()}
    width = max(map(len, rows))
    for command, said in rows.items():
        print(f"{command:{width}}  {said}")


if __name__ == "__main__":
    show("reproducers", Path(__file__).parent)
