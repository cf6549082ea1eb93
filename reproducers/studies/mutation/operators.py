"""The mistakes that are made in a patch's lines, each an operator: (source, node) to edits of that source.

An operator may edit lines that are not the patch's, and make what does not compile: ``generated`` sorts out.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator

from reproducers.studies.mutation.source import Edit, Source

Operator = Callable[[Source, ast.AST], Iterator[Edit]]

ARITHMETIC = {
    ast.Add: ("+", ["-"]),
    ast.Sub: ("-", ["+"]),
    ast.Mult: ("*", ["/", "+"]),
    ast.Div: ("/", ["*"]),
    ast.FloorDiv: ("//", ["/", "*"]),
    ast.Mod: ("%", ["//"]),
    ast.Pow: ("**", ["*"]),
    ast.MatMult: ("@", ["*"]),
    ast.LShift: ("<<", [">>"]),
    ast.RShift: (">>", ["<<"]),
    ast.BitAnd: ("&", ["|"]),
    ast.BitOr: ("|", ["&"]),
    ast.BitXor: ("^", ["&"]),
}
COMPARISON: dict[type[ast.cmpop], tuple[list[str], list[str]]] = {
    ast.Lt: (["<"], ["<=", ">="]),
    ast.LtE: (["<="], ["<", ">"]),
    ast.Gt: ([">"], [">=", "<="]),
    ast.GtE: ([">="], [">", "<"]),
    ast.Eq: (["=="], ["!="]),
    ast.NotEq: (["!="], ["=="]),
    ast.Is: (["is"], ["is not"]),
    ast.IsNot: (["is", "not"], ["is"]),
    ast.In: (["in"], ["not in"]),
    ast.NotIn: (["not", "in"], ["in"]),
}
DTYPES = {
    "float32": ["bfloat16", "float64"],
    "bfloat16": ["float32", "float16"],
    "float16": ["float32", "bfloat16"],
    "float64": ["float32"],
    "int32": ["int64"],
    "int64": ["int32"],
}
METHODS = {  # of a tensor, and torch's own short names
    "float": ["bfloat16", "double"],
    "double": ["float"],
    "half": ["float"],
    "long": ["int"],
    "int": ["long"],
}
AXES = {"dim", "dims", "axis", "axes"}
TAKES_AXIS = {  # calls whose first whole number is an axis
    *("size", "stride", "sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "max", "min", "any", "all"),
    *("softmax", "log_softmax", "logsumexp", "cumsum", "cumprod", "norm", "sort", "flip", "unbind", "select", "narrow"),
    *("unsqueeze", "squeeze", "cat", "stack", "chunk", "split", "gather", "scatter", "scatter_", "scatter_add_"),
    *("index_select", "index_fill_", "index_add_", "index_copy_", "expand_dims", "program_id", "num_programs"),
}
COMPOUND = ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try
SIMPLE = (
    ast.Expr
    | ast.Assign
    | ast.AugAssign
    | ast.AnnAssign
    | ast.Delete
    | ast.Return
    | ast.Raise
    | ast.Assert
    | ast.Continue
    | ast.Break
)
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def arithmetic(source: Source, node: ast.AST) -> Iterator[Edit]:
    """``a + b`` to ``a - b`` and the like, ``a += b`` too; ``-a`` to ``a``."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        left, right = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
        sign, others = ARITHMETIC[type(node.op)]
        equals = "=" if isinstance(node, ast.AugAssign) else ""
        for token in source.between(source.span(left)[1], source.span(right)[0]):
            if token.text == sign + equals:
                yield from (Edit(token.start, token.end, other + equals) for other in others)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        yield from _without_first_token(source, node)


def comparison(source: Source, node: ast.AST) -> Iterator[Edit]:
    """``a < b`` to ``a <= b`` and ``a >= b``, ``is`` to ``is not``, and the like."""
    if not isinstance(node, ast.Compare):
        return
    sides = [node.left, *node.comparators]
    for place, op in enumerate(node.ops):
        words, others = COMPARISON[type(op)]
        inner = source.between(source.span(sides[place])[1], source.span(sides[place + 1])[0])
        tokens = [token for token in inner if token.text in words]
        if len(tokens) == len(words):
            yield from (Edit(tokens[0].start, tokens[-1].end, other) for other in others)


def boolean(source: Source, node: ast.AST) -> Iterator[Edit]:
    """``and`` to ``or`` and back, ``not a`` to ``a``."""
    if isinstance(node, ast.BoolOp):
        word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for first, second in zip(node.values, node.values[1:], strict=False):
            for token in source.between(source.span(first)[1], source.span(second)[0]):
                if token.text == word:
                    yield Edit(token.start, token.end, other)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _without_first_token(source, node)


def _without_first_token(source: Source, node: ast.AST) -> Iterator[Edit]:
    start, end = source.span(node)
    second = [token for token in source.between(start, end)][1]
    yield Edit(start, second.start, "")


def constant(source: Source, node: ast.AST) -> Iterator[Edit]:
    """A number one larger, one smaller and 0; ``True`` to ``False`` and back."""
    if not isinstance(node, ast.Constant):
        return
    value = node.value
    if isinstance(value, bool):
        yield Edit(*source.span(node), str(not value))
    elif isinstance(value, int | float):
        for other in dict.fromkeys((value + 1, value - 1, type(value)(0))):
            yield Edit(*source.span(node), f"({other!r})" if other < 0 else repr(other))


def axis(source: Source, node: ast.AST) -> Iterator[Edit]:
    """The axis of a call, by keyword or first, to 0, 1 and -1."""
    if not isinstance(node, ast.Call):
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    places = [keyword.value for keyword in node.keywords if keyword.arg in AXES]
    if name in TAKES_AXIS:
        places += [arg for arg in node.args if _whole(arg)][:1]
    for place in places:
        if _whole(place):
            yield from (Edit(*source.span(place), other) for other in ("0", "1", "-1"))


def _whole(node: ast.AST) -> bool:
    """Whether a node is a whole number, also a negative one."""
    inner = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    return isinstance(inner, ast.Constant) and type(inner.value) is int


def dtype(source: Source, node: ast.AST) -> Iterator[Edit]:
    """A dtype to a neighbour of it, as a name, an attribute, a method such as ``float()``, or a string."""
    if isinstance(node, ast.Attribute):
        end = source.span(node)[1]
        others = (DTYPES | METHODS).get(node.attr, [])
        yield from (Edit(end - len(node.attr), end, other) for other in others)
    elif isinstance(node, ast.Name):
        yield from (Edit(*source.span(node), other) for other in DTYPES.get(node.id, []))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and source.piece(node)[1:-1] == node.value:
        start, end = source.span(node)
        yield from (Edit(start + 1, end - 1, other) for other in DTYPES.get(node.value, []))


def statement(source: Source, node: ast.AST) -> Iterator[Edit]:
    """A statement left out; not a docstring, an import or a definition, without which nothing runs."""
    said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if isinstance(node, SIMPLE | COMPOUND) and not said:
        yield Edit(*source.span(node), "pass")


def condition(source: Source, node: ast.AST) -> Iterator[Edit]:
    """A condition that always or never holds; a loop's never holds, for the other would not end."""
    tests = [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else []
    if isinstance(node, ast.comprehension):
        tests = node.ifs
    for test in tests:
        for word in ("False",) if isinstance(node, ast.While) else ("True", "False"):
            yield Edit(*source.span(test), word)


def early_return(source: Source, node: ast.AST) -> Iterator[Edit]:
    """A return of the first argument, or of None, before a function's first statement of each stretch of added lines.

    Also a returned value to None.
    """
    if isinstance(node, ast.Return) and node.value is not None:
        yield Edit(*source.span(node.value), "None")
    if not isinstance(node, FUNCTION):
        return
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args) if arg.arg not in ("self", "cls", "ctx")]
    covered = 0  # the last line of the stretch that has its returns
    for inner in statements(node):
        start = source.span(inner)[0]
        number = source.line(start)
        indent = source.data[source.starts[number - 1] : start].decode()
        if number in source.added and number > covered and not indent.strip():
            covered = next(line for line in itertools.count(number) if line + 1 not in source.added)
            yield from (Edit(start, start, f"return {value}\n{indent}") for value in (*names[:1], "None"))


def statements(function: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a function, those of inner blocks included, in order; no docstring, no inner function's."""
    for child in ast.iter_child_nodes(function):
        said = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if isinstance(child, ast.stmt) and not said:
            yield child
        if not isinstance(child, FUNCTION | ast.ClassDef | ast.Lambda):
            yield from statements(child)


def swap(source: Source, node: ast.AST) -> Iterator[Edit]:
    """Two neighbouring arguments of a call in the other order."""
    if isinstance(node, ast.Call):
        for first, second in zip(node.args, node.args[1:], strict=False):
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                (start, middle), (behind, end) = source.span(first), source.span(second)
                between = source.data[middle:behind].decode()
                yield Edit(start, end, source.piece(second) + between + source.piece(first))


def keyword(source: Source, node: ast.AST) -> Iterator[Edit]:
    """A call without one of its keyword arguments."""
    if not isinstance(node, ast.Call):
        return
    for given in node.keywords:
        if given.arg is None:
            continue
        start, end = source.span(given)
        behind = source.after(end)
        while behind and behind.text == ")" and behind.end < source.span(node)[1]:  # parentheses around the value
            end, behind = behind.end, source.after(behind.end)
        if behind and behind.text == ",":
            follows = source.after(behind.end)
            yield Edit(start, follows.start if follows and follows.text != ")" else behind.end, "")
        else:
            before = [token for token in source.between(source.span(node.func)[1], start)][-1]
            yield Edit(before.start if before.text == "," else start, end, "")


OPERATORS: dict[str, Operator] = {
    "arithmetic": arithmetic,
    "comparison": comparison,
    "boolean": boolean,
    "constant": constant,
    "axis": axis,
    "dtype": dtype,
    "statement": statement,
    "condition": condition,
    "return": early_return,
    "swap": swap,
    "keyword": keyword,
}
