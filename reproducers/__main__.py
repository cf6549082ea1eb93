"""The command ``patchlane``: every verb of the project by one name, in four groups."""

from __future__ import annotations

import ast
import difflib
import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("reproducers", "model")
GROUPS = {  # the title of each group and the modules of its verbs
    "Run": ["reproducers." + name for name in ("run", "audit", "doctor", "explain", "ablate", "mutate", "bundle")],
    "Evidence": [
        "reproducers." + name
        for name in ("receipts", "manifest", "site", "sweep", "bisect", "applies", "upstream_tests")
    ],
    "Filing": [
        "reproducers." + name
        for name in ("new", "release", "export", "render", "lint", "series", "preflight", "approve", "waves")
    ],
    "Training": [
        "model." + name
        for name in (
            "train",
            "report",
            "compare",
            "spread",
            "pictures",
            "coverage",
            "describe",
            "data",
            "weights",
            "generate",
            "evaluate",
            "receipt",
            "lock",
        )
    ],
}
RENAMED = {  # train-: beside the receipts and locks of packs
    "model.receipt": "train-receipt",
    "model.lock": "train-lock",
    "reproducers.upstream_tests": "upstream-tests",
}
VERBS = {RENAMED.get(module, module.partition(".")[2]): module for group in GROUPS.values() for module in group}


def verbs(folder: Path) -> dict[str, str]:
    """{verb: the first sentence of its docstring} of the modules of a package that can be run."""
    summaries = {}
    for path in sorted([*folder.glob("[a-z]*.py"), *folder.glob("*/__main__.py")]):
        text = path.read_text(encoding="utf-8")
        if "guarded(" in text and "def guarded" not in text:
            name = path.stem if path.parent == folder else path.parent.name
            summaries[name] = _first_sentence(ast.get_docstring(ast.parse(text)) or "")
    return summaries


def _first_sentence(docstring: str) -> str:
    """The docstring's first sentence without the command in it."""
    text = " ".join(docstring.split("\n\n")[0].split())
    text = re.sub(r"^``python.*?``.*?: |[:,]? ``python -m .*", "", text).split(". ")[0].rstrip(".").replace("``", "")
    return text[:1].upper() + text[1:]


def listing() -> str:
    """All verbs in their groups, one line each."""
    summaries = {f"{name}.{verb}": text for name in PACKAGES for verb, text in verbs(ROOT / name).items()}
    names = {module: name for name, module in VERBS.items()}
    width = max(map(len, VERBS))
    lines = ["Usage: patchlane VERB ...     patchlane VERB --help lists a verb's options"]
    for title, modules in GROUPS.items():
        lines += ["", title, *(f"  {names[module]:{width}}  {summaries[module]}" for module in modules)]
    return "\n".join(lines)


def main() -> None:
    """Run the verb that the command line names, as ``python -m`` does; list all verbs if it names none."""
    verb, rest = "".join(sys.argv[1:2]), sys.argv[2:]
    sys.argv = [f"patchlane {verb}".rstrip(), *rest]  # the verb's own help and messages print this name
    from reproducers.base import start

    start.check()
    if not (ROOT / "packs").is_dir():
        start.refuse("patchlane is installed without its packs", "pip install -e CLONE, a clone of the repository")
    if verb in ("", "-h", "--help"):
        from reproducers.base.cli import guarded

        guarded(lambda: print(listing()))
    elif verb in VERBS:
        from reproducers.base import cli

        cli.SPOKEN.update({module: name for name, module in VERBS.items()})
        runpy.run_module(VERBS[verb], run_name="__main__")
    else:
        near = " or ".join(f"patchlane {name}" for name in difflib.get_close_matches(verb, VERBS))
        print(f"error: no verb {verb!r}\n  fix: {near or 'patchlane --help'}", file=sys.stderr)
        raise SystemExit(2)


if __name__ == "__main__":
    main()
