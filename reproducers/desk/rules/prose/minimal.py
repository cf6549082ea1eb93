"""The reproducer begins with a few lines that anybody can paste and run, and the texts quote exactly these lines."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from reproducers.desk.rules.case import Case
from reproducers.desk.rules.registry import Breach, Skip, rule
from reproducers.desk.text import minimal
from reproducers.record.schema import parsed, text_of

LINES, WIDTH = 15, 100


@rule("minimal-shape", "a reproducer begins with minimal(): 15 short lines that import all they use, and no probe")
def shape(case: Case) -> Iterator[Breach | Skip]:
    path = case.pack.reproducer
    body = parsed(text_of(path)).body
    first = next((n for n in body[1:] if not isinstance(n, ast.Import | ast.ImportFrom)), None)
    code = minimal.code(path)
    if code is None or not isinstance(first, ast.FunctionDef) or first.name != "minimal":
        line = first.lineno if first else 1
        yield Breach(path, line, "the first definition is not minimal()", "define it right after the imports")
        return
    if ast.unparse(first.args):
        yield Breach(path, first.lineno, "minimal() takes arguments", "let it make all that it needs")
    rows = [row for row in code.splitlines() if row.strip() and not row.strip().startswith("#")]
    if len(rows) > LINES:
        yield Breach(path, first.lineno, f"minimal() has {len(rows)} lines of code", f"shorten it to {LINES}")
    for row in rows:
        if len(row) > WIDTH:
            yield Breach(path, first.lineno, f"a line of minimal() has {len(row)} characters", f"fold it at {WIDTH}")
    for name in sorted(_foreign(ast.parse(code))):
        yield Breach(path, first.lineno, f"minimal() uses {name}, which it does not define", "define it inside")


def _foreign(tree: ast.Module) -> set[str]:
    """Names that the code reads and does not bind, and the probe, however it is imported."""
    used: set[str] = set()
    bound = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
            modules = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            used |= {"reproducers"} & {module.split(".")[0] for module in modules}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return used - (bound - {"reproducers"})


@rule("minimal-quoted", "every text quotes the code of minimal(), letter by letter")
def quoted(case: Case) -> Iterator[Breach | Skip]:
    code = minimal.code(case.pack.reproducer)
    for form, text in case.texts.items():
        if code is not None and f"python\n{code}```" not in text.markdown:
            yield Breach(case.body, 1, f"the {form} does not quote minimal()", "let the form put it in")
