"""An alarm as a pack folder that runs: ``new``'s files, and a reproducer of the shrunk case."""

from __future__ import annotations

import ast
import importlib
import inspect
import pprint
import shutil
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template
from typing import Any

from patchlane.base.clock import today
from reproducers.desk.start import skeleton
from reproducers.record.schema import ROOT
from reproducers.studies.hunt import kit, limits, relations, trying
from reproducers.studies.hunt.corpus import Alarm
from reproducers.studies.hunt.targets import Upstream
from reproducers.studies.hunt.targets.target import Target

LISTS = ("releases.yaml", "needs.yaml", "numbers.yaml")  # what ``new`` reads beside the packs
REPRODUCER = Template('''\
# /// script
# requires-python = ">=3.11"
# dependencies = ["$distribution==$release", "torch"]
# ///
"""<write the claim, in one sentence>

Found by a hunt (seed $seed): $line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from reproducers import probe


def minimal() -> None:
    """<write the bug in at most 15 lines, without the probe>"""
    import $package

    raise AssertionError($package.__name__)


$sources


MADE = [  # name, shape, kind of values, layout
$made
]
OPTIONS: dict[str, Any] = $options
NEEDS = $needs
FOUND = $found  # the errors that the hunt measured


def reproduce(p: probe.Probe) -> None:
    $prepared
    function = getattr(p.upstream("$module"), "$name")
    under_test: Callable[..., Any] = $call
    one = Bench(under_test, $reference, MADE, OPTIONS, NEEDS, "$spread", $weights, $value_seed, torch.$dtype)
$checks


if __name__ == "__main__":
    probe.main(reproduce, pack=$number, package="$package", minimal=minimal)
''')
WRONG = """\
    noises, worst = noise(one), dict[str, tuple[float, float]]()
    for what, got, want in {relation}:
        allowed = {limit}
        worst[what] = max(worst.get(what, (0.0, allowed)), (error(got, want), allowed))
    for what, found in FOUND.items():  # half of what the hunt measured is the bug
        p.error(what, *worst[what], reference="{against}", bug_above=max(found / 2, 2 * worst[what][1]))
    for what in worst.keys() - FOUND.keys():
        p.guard(what, *worst[what], reference="{against}")"""
RAISES = """\
    p.attempt("{relation}", lambda: {call}, probe.Signature("{kind}", "", "{frame}"))"""


def write(alarm: Alarm, of: Upstream, tree: Path, out: Path) -> str:
    """Write the alarm's folder below ``out`` unless it is there; says where it is and the command that runs it."""
    slug = f"{of.package}_{alarm.target}_{alarm.relation}{'_raises' * bool(alarm.raised)}".lower()
    folder = next(out.glob(f"[0-9]*_{slug}"), None)
    if folder is None:
        out.mkdir(parents=True, exist_ok=True)
        for name in LISTS:
            if not (out / name).exists():
                shutil.copyfile(ROOT / "packs" / name, out / name)
        wanted = skeleton.Wanted(
            slug, of.repo, alarm.release, distribution=alarm.distribution, package=of.package, kind="report"
        )
        folder = skeleton.create(wanted, out, today())[0].parent
        number = int(folder.name.partition("_")[0])
        (folder / "reproducer.py").write_text(reproducer(alarm, of, number), encoding="utf-8")
    return f"{folder}: python {folder}/reproducer.py --tree {tree}"


def reproducer(alarm: Alarm, of: Upstream, number: int) -> str:
    """The text of a reproducer of the alarm's case, with what a person has to write marked."""
    module = importlib.import_module(of.targets)
    target: Target = next(t for t in module.TARGETS if t.name == alarm.target)
    case = trying.Case(**alarm.case | {"weights": tuple(alarm.case["weights"])})
    every: dict[str, Callable[..., Any]] = {**relations.RELATIONS, "rows": relations.rows}
    relation = every.get(alarm.relation)
    called = f"{relation.__name__}(one)" if relation else "one.passes()"
    if relation is relations.rows:
        called = f"rows(one, {trying.row_dims(target)!r})"
    wanted: list[Callable[..., Any] | None] = [target.call, target.reference, relation]
    shown = [f for f in wanted if f is not None]
    made = "\n".join(f"    Made({m.name!r}, {m.shape}, {m.kind!r}, {m.layout!r})," for m in trying.made(target, case))
    package, _, name = target.symbol.partition(":")
    values = {
        **{"distribution": alarm.distribution, "release": alarm.release, "package": of.package, "seed": alarm.seed},
        "line": alarm.line(),
        "sources": "\n\n\n".join([_body(kit), *_sources(shown), *_sources([limits.noise, limits.limit])]),
        "made": made,
        "options": pprint.pformat(case.options, width=100),
        "needs": [name for name in case.needs if name not in case.absent],
        "prepared": module.PREPARED,
        **{"module": package, "name": name, "number": number},
        "call": f"lambda **given: {target.call.__name__}(function, **given)" if target.call else "function",
        "reference": target.reference.__name__ if target.reference else None,
        **{"spread": case.spread, "weights": case.weights, "value_seed": case.seed, "dtype": case.dtype},
        "found": pprint.pformat({alarm.what: alarm.error, **alarm.also}, width=100),
        "checks": _raising(alarm, called) if alarm.raised else _wrong(alarm, called),
    }
    return REPRODUCER.substitute(values)


def _wrong(alarm: Alarm, called: str) -> str:
    against = "eager fp64" if alarm.relation == "reference" else alarm.relation.replace("_", " ")
    limit = "0.0" if alarm.relation in relations.EXACT else "limit(what, want, noises, one.dtype)"
    return WRONG.format(relation=called, limit=limit, against=against)


def _raising(alarm: Alarm, called: str) -> str:
    kind, _, rest = alarm.raised.partition(" in ")
    call = called if called == "one.passes()" else f"[*{called}]"
    return RAISES.format(relation=alarm.relation, call=call, kind=kind, frame=rest.partition(":")[0])


def _body(module: Any) -> str:
    """A module's text without its docstring and imports."""
    text = inspect.getsource(module)
    first = next(node for node in ast.parse(text).body[1:] if not isinstance(node, ast.Import | ast.ImportFrom))
    return "\n".join(text.splitlines()[first.lineno - 1 :]).strip()


def _sources(functions: Sequence[Callable[..., Any]]) -> list[str]:
    """The texts of functions and of the functions and constants of their modules that they use, each once."""
    texts, waiting = dict[str, str](), list(functions)
    while waiting:
        function = waiting.pop()
        text = textwrap.dedent(inspect.getsource(function)).replace("kit.", "")
        texts.setdefault(function.__name__, text.strip())
        module = inspect.getmodule(function)
        used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)} - texts.keys()
        for name in sorted(used):
            value = getattr(module, name, None)
            if inspect.isfunction(value) and value.__module__ == function.__module__:
                waiting.append(value)
            elif name.isupper() and isinstance(value, int | float | str | tuple | set | dict):
                texts[name] = f"{name} = {value!r}"
    return [texts[name] for name in sorted(texts, key=lambda name: not name.isupper())]
