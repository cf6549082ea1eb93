"""Say which known bugs of the LLM training stack an environment has: ``patchlane audit [--python PATH]``.

Nothing of the environment is run. The functions that a pack's patch changes are compared, by digest, with those of
trees of which run records say whether they have the bug. Exit 1 when a bug is unpatched, 0 when none is, 77 when
nothing could be decided or a line was not understood.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, NoReturn

from patchlane.base import place
from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from patchlane.verb.request import Request, answered


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise PatchlaneError(message, f"{place.AUDIT} --help")


def _path(text: str) -> Path:
    """A path; an empty word, as an unset variable gives, is none."""
    if not text:
        raise PatchlaneError("an empty path", "set the variable that names it, or leave the option out")
    return Path(text)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    words = _Parser(prog="patchlane audit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("packs", metavar="PACK", nargs="*", help="packs, as pack09 (default: all)")
    words.add_argument(
        "--python",
        type=_path,
        metavar="PATH",
        help="an interpreter, a virtual environment or a folder of packages (default: what is activated)",
    )
    words.add_argument(
        "--requirements",
        type=_path,
        metavar="FILE",
        help="judge what requirements, a lock, a project, a list, a script or a Dockerfile ask for; - is stdin",
    )
    words.add_argument("--release", metavar="NAME==VERSION", help="a table of one release's bugs, by its number")
    words.add_argument("--ignore", metavar="PACK", action="append", default=[], help="leave this pack out; repeatable")
    words.add_argument("--since", metavar="DATE", help="only packs that came in on this day or later")
    words.add_argument("--fail-on", metavar="HARM,...", help="exit 1 for bugs of these harms only, such as crash")
    words.add_argument("--data", metavar="FILE|URL", help="another index of known bugs than the one that came along")
    words.add_argument("--apply", action="store_true", help="put in all patches that fit, or none; then audit again")
    words.add_argument("--dry-run", action="store_true", help="with --apply: say what would be done, and do nothing")
    words.add_argument("--revert", action="store_true", help="take out what --apply put in, file by file as it was")
    words.add_argument("--json", dest="as_json", action="store_true", help="the answers as JSON on stdout")
    words.add_argument("--sarif", type=_path, metavar="FILE", help="also write the answers as SARIF 2.1.0")
    return words


def main(arguments: list[str]) -> Exit:
    """Audit an environment; without a word of which, the one that is activated, for ours is seldom what is meant."""
    given: dict[str, Any] = vars(parser().parse_intermixed_args(arguments))
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    if not (given["python"] or given["requirements"] or given["release"]):
        activated = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
        given["python"] = Path(activated) if activated else None
    return answered(Request(**given))
