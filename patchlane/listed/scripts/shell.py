"""Commands of a shell script, as tree-sitter's bash grammar reads them, with the variables that the script sets."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from patchlane.base.optional import load

LONGEST = 4096  # characters of a variable
DEEPEST = 200  # levels of a script's syntax


class Command(NamedTuple):
    """A simple command: its first line (1-based), its words (None: one that only a run tells), its text.

    ``fed``: it reads what a pipe, a file or a here-document gives it; ``document`` is that here-document's text.
    """

    line: int
    words: list[str | None]
    text: str
    fed: bool = False
    document: str = ""


@dataclass
class Variables:
    """What the script sets once, to a word that stands in it; a variable set twice or by a run is not known."""

    values: dict[str, str | None] = field(default_factory=dict)

    def put(self, name: str, value: str | None) -> None:
        value = value if value is None or len(value) <= LONGEST else None
        self.values[name] = value if name not in self.values or self.values[name] == value else None


def parser(module: str, distribution: str) -> Any:
    """A tree-sitter parser of this grammar."""
    sitter, grammar = load("tree_sitter", "tree-sitter"), load(module, distribution)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of grammars that give their pointer as a number
        return sitter.Parser(sitter.Language(grammar.language()))


def commands(text: str, variables: Variables) -> tuple[list[Command], list[tuple[int, str]]]:
    """(the commands of a script, the lines that are no bash with their text), in the script's order."""
    root = parser("tree_sitter_bash", "tree-sitter-bash").parse(text.encode()).root_node
    nodes = list(_walk(root))
    for node in nodes:
        if node.type == "variable_assignment" and node.parent.type != "command":
            value = node.child_by_field_name("value")
            plain = node.children[1].type == "=" and not _in_loop(node)
            variables.put(node.child_by_field_name("name").text.decode(), _word(value, variables) if plain else None)
        elif node.type == "command" and (found := _setting(node)):
            for name in found:
                variables.put(name, None)
        elif node.type == "for_statement":
            variables.put(node.child_by_field_name("variable").text.decode(), None)
    bad = [(node.start_point[0] + 1, node.text.decode()) for node in nodes if node.is_error or node.is_missing]
    return [_command(node, variables) for node in nodes if node.type == "command"], bad


def _setting(node: Any) -> list[str]:
    """Names that ``read``, ``mapfile`` and ``printf -v`` set."""
    words = [child.text.decode() for child in node.children]
    if words[:1] in (["read"], ["mapfile"], ["readarray"]):
        return [word for word in words[1:] if word.isidentifier()]
    return words[2:3] if words[:2] == ["printf", "-v"] else []


def _walk(node: Any) -> Iterator[Any]:
    waiting = [(node, 0)]
    while waiting:
        each, depth = waiting.pop()
        if depth > DEEPEST:
            raise RecursionError
        yield each
        waiting += [(child, depth + 1) for child in reversed(each.children)]


def _in_loop(node: Any) -> bool:
    while node := node.parent:
        if node.type in ("for_statement", "while_statement", "function_definition", "c_style_for_statement"):
            return True
    return False


def _command(node: Any, variables: Variables) -> Command:
    own = dict(variables.values)
    for child in node.children:
        if child.type == "variable_assignment":  # VARIABLE=value command
            own[child.child_by_field_name("name").text.decode()] = _word(child.child_by_field_name("value"), variables)
    above = node.parent
    piped = above.type == "pipeline" and above.children[0] != node
    redirects = [c for c in above.children if "redirect" in c.type] if "redirect" in above.type else []
    words = list[str | None]()
    for part in [child for child in node.children if child.type != "variable_assignment"]:
        words += _targets(part, variables) if "redirect" in part.type else _split(part, variables)
    for redirect in redirects:
        words += _targets(redirect, variables)
    reads = any(redirect.text.lstrip(b"0123456789").startswith(b"<") for redirect in redirects)
    body = next((c.text.decode() for each in redirects for c in each.children if c.type == "heredoc_body"), "")
    text = above.text.decode() if redirects else node.text.decode()
    return Command(node.start_point[0] + 1, words, text, piped or reads, body)


def _split(node: Any, variables: Variables) -> list[str | None]:
    """The words that one word becomes: the shell splits an unquoted variable."""
    inner = node.children[0] if node.type == "command_name" and len(node.children) == 1 else node
    word = _word(node, variables)
    if word is None or inner.type not in ("simple_expansion", "expansion"):
        return [word]
    return [*word.split()]


def _targets(redirect: Any, variables: Variables) -> list[str | None]:
    """The words behind a redirection's file, which the grammar takes for files, too; the shell, for arguments."""
    if redirect.type != "file_redirect":
        return []
    words = [child for child in redirect.children if child.is_named and child.type != "file_descriptor"]
    return [_word(word, variables) for word in words[1:]]


def _word(node: Any, variables: Variables) -> str | None:
    """A word's text; None where it holds what only a run tells."""
    if node is None:
        return ""
    kind, text = str(node.type), str(node.text.decode())
    if kind in ("word", "number", "string_content", "test_operator", "regex", "variable_name", "special_character"):
        return re.sub(r"\\(.)", r"\1", text) if kind == "word" else text
    if kind == "raw_string":
        return str(text[1:-1])
    if kind == "simple_expansion":
        return variables.values.get(text[1:])
    if kind == "expansion":
        return _expansion(node, variables)
    if kind == "string":
        return _joined([c for c in node.children if c.type != '"'], text[1:-1], node, variables)
    if kind in ("concatenation", "command_name"):
        return _joined(node.children, text, node, variables)
    return text if not node.children and not kind.isidentifier() else None  # a sign of the grammar's, as { or =


def _joined(parts: list[Any], text: str, node: Any, variables: Variables) -> str | None:
    """The parts with the white space between them, which the grammar leaves out of a string's parts."""
    if not parts:
        return text
    start = node.start_byte + (node.type == "string")
    end = node.end_byte - (node.type == "string")
    whole, place, out = node.text, node.start_byte, []
    for part in parts:
        word = _word(part, variables)
        if word is None:
            return None
        out += [whole[start - place : part.start_byte - place].decode(), word]
        start = part.end_byte
    return "".join([*out, whole[start - place : end - place].decode()])


def _expansion(node: Any, variables: Variables) -> str | None:
    """``${NAME}``, and ``${NAME:-default}``, which is the default where the script sets nothing."""
    found = re.fullmatch(r"\$\{(\w+)(?::?-(.*))?\}", node.text.decode(), re.DOTALL)
    if found is None:
        return None
    if found[1] in variables.values:
        return variables.values[found[1]]
    return found[2].strip("\"'") if found[2] is not None and "$" not in found[2] else None
