"""Write a reproducer and the probe as one file that a maintainer runs on any tree, without this repository.

``python -m reproducers.export pack09 -o pack09.py``: the PEP 723 header, the docstring, how to run it, the probe's
modules as readable text with a small importer, then the reproducer's own code, unchanged.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from reproducers import disk, pins
from reproducers.errors import PatchlaneError
from reproducers.schema import Pack, load_named
from reproducers.store import file_sha256, write_atomic

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
ENGINE = Path(__file__).resolve().parent
ISSUE_LIMIT = 65_536  # characters that GitHub takes in one issue or comment
HEADER = re.compile(r"(?m)^# /// script$\s(^#(| .*)$\s)+^# ///$\n")  # PEP 723's own pattern, for one type
# Commands of this repository mean nothing to whoever holds only the exported file.
REMEDIES = {
    '"make setup"': '"install what the header lists"',
    '"python -m reproducers.doctor"': '"install what the header lists"',
}
LOADER = '''
class _Embedded(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """Import the probe's modules from the texts above, before any folder is searched."""

    def find_spec(self, fullname, path=None, target=None):
        return importlib.util.spec_from_loader(fullname, self) if fullname in _SOURCES else None

    def get_filename(self, fullname):
        return f"{__file__}/{fullname.replace('.', '/')}.py"  # for tracebacks; there is no such file

    def get_source(self, fullname):
        return _SOURCES[fullname]

    def is_package(self, fullname):
        return fullname == "reproducers"


sys.meta_path.insert(0, _Embedded())
'''


def _lanes(reproducer: str) -> Iterator[str]:
    """The ``lane_*`` modules behind the probe's methods that the reproducer calls; only these travel."""
    called = {node.attr for node in ast.walk(ast.parse(reproducer)) if isinstance(node, ast.Attribute)}
    for node in ast.walk(ast.parse((ENGINE / "probe.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name in called:
            yield from (name for name in _imported(ast.unparse(node)) if name.startswith("reproducers.lane_"))


def _imported(source: str) -> Iterator[str]:
    """Dotted names under ``reproducers`` that a source imports or names in a string, its candidates for embedding."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def embedded(reproducer: str) -> dict[str, str]:
    """{module name: text} of all that the reproducer can reach."""
    waiting = ["reproducers", *_lanes(reproducer), *_imported(reproducer)]
    found: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        path = ENGINE / ("__init__.py" if name == "reproducers" else name.removeprefix("reproducers.") + ".py")
        if name in found or not re.fullmatch(r"reproducers(\.\w+)?", name) or not path.is_file():
            continue
        found[name] = path.read_text(encoding="utf-8")
        waiting += (other for other in _imported(found[name]) if "lane_" not in other or name != "reproducers.probe")
    return {name: _for_strangers(name, found[name]) for name in sorted(found)}


def _for_strangers(name: str, text: str) -> str:
    """The module's text with remedies that hold outside this repository; refused where it would end the literal."""
    for ours, theirs in REMEDIES.items():
        text = text.replace(ours, theirs)
    if "'''" in text or HEADER.search(text):
        raise PatchlaneError(f"{name}: holds ''' or a script header, which cannot be embedded", "reword it")
    return text


def split(source: str) -> tuple[str, str, str, str]:
    """(PEP 723 header, docstring, ``__future__`` imports, the rest) of a reproducer; they add up to its text."""
    header = HEADER.match(source)
    if header is None:
        raise PatchlaneError("the reproducer does not begin with a PEP 723 header", "docs/writing-a-pack.md")
    body = ast.parse(source).body
    if not (body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)):
        raise PatchlaneError("the reproducer has no docstring", "state the claim in one")
    lines = source.splitlines(keepends=True)
    said, ended = header[0].count("\n"), body[0].end_lineno or 0
    future = [n.end_lineno or 0 for n in body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    cut = max([ended, *future])
    return header[0], "".join(lines[said:ended]), "".join(lines[ended:cut]), "".join(lines[cut:])


def note(pack: Pack) -> str:
    """How to run the file, as comments."""
    name, package, root = f"{pack.id}.py", pack.upstream.package, pack.upstream.source_root
    checkout = f"; of a checkout, DIR is its {root}/" if root != "." else ""
    rows = [
        f"How to run it, with the packages that the header lists ({' or '.join(sorted(pack.lanes))} lane):",
        f"  uv run {name}",
        f"  python {name}               the {package} that this interpreter has installed",
        f"  python {name} --tree DIR    the {package} in DIR, an unpacked release or a checkout{checkout}",
        "  --lane cuda, --seed N and --needs DIR (a folder with further packages) go with each; see --help.",
        f"It prints BUG_REPRODUCED where the bug is, as in {pack.upstream.distribution} {pack.pins['live'].label},",
        "and HEALTHY where it is not. Exit status: 0 for both, 77 when this host cannot tell, 1 for any other failure.",
        *_needs(pack),
        "The last part of this file is the reproducer, unchanged; its own file has sha256",
        f"{file_sha256(pack.reproducer)}. Before it comes the probe that it reports through.",
    ]
    return "".join(f"# {row}".rstrip() + "\n" for row in rows)


def _needs(pack: Pack) -> list[str]:
    needs = [f"{n.distribution} {n.release}" for n in pins.needs_of(pack, pack.pins["live"])]
    return [f"Tested beside: {', '.join(needs)}."] if needs else []


def render(pack: Pack, modules: dict[str, str] | None = None) -> str:
    """The exported file's text; a pure function of the pack's and the engine's files."""
    source = pack.reproducer.read_text(encoding="utf-8")
    header, docstring, future, rest = split(source)
    texts = modules if modules is not None else embedded(source)
    rows = [f"_SOURCES = {{}}  # the probe: {len(texts)} modules as text\n"]
    rows += [f"_SOURCES[\"{name}\"] = r'''{text}'''\n" for name, text in texts.items()]
    imports = "import importlib.abc\nimport importlib.util\nimport sys\n"
    ruler = f"\n# {'-' * 20} the reproducer {'-' * 20}\n"
    return "".join([header, docstring, note(pack), future, "\n", imports, "\n", *rows, "\n", LOADER, ruler, rest])


@app.command()
def main(
    name: Annotated[str, typer.Argument(metavar="PACK", help="pack05, 05 or 5")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="file to write (default: stdout)")] = None,
) -> None:
    """Write the pack's reproducer as one self-contained Python file."""
    (pack,) = load_named([name])
    text = render(pack)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_atomic(disk.usable_file(output, "-o FILE names another file"), text.encode())
    fits = "fits" if len(text) <= ISSUE_LIMIT else "does not fit; attach it or use a gist"
    typer.echo(f"{output or pack.id}: {len(text):,} characters; an issue takes {ISSUE_LIMIT:,}: {fits}", err=True)


if __name__ == "__main__":
    from reproducers.cli import guarded

    guarded(app)
