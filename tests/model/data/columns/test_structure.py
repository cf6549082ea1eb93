"""Side columns: causal where they say so, right against ``tokenize`` and ``ast``, never an exception."""

import ast
import io
import keyword
import random
import sysconfig
import tokenize
from pathlib import Path

import numpy as np
import pytest

from model.data.columns import lexer
from model.data.columns.lexer import COMMENT, KEYWORD, NAME, NUMBER, OPERATOR, STRING, WHITESPACE, lex
from model.data.columns.structure import CAUSAL, DEFAULT_FIELDS, FIELDS, annotate, token_columns
from model.data.columns.syntax import NODE_CODE, UNKNOWN_NODE, syntax_columns

STDLIB = Path(sysconfig.get_path("stdlib"))
SOURCES = [(STDLIB / name).read_bytes() for name in ("heapq.py", "textwrap.py", "fractions.py", "contextlib.py")]
HARD = (
    b'def f(x):\n\tif x:  # c\n\t    return [1.5e-3,\n0x1F, """a\n"b""c"""]\n\n  # odd\n'
    b"    y = rb'\\'q' if as_ else 1.\nclass A: \\\n  pass\nif A:\n  pass\n\\\n)\n x = 'open\n\r\n\ry='''\\"
)


def test_def_is_a_keyword_once_it_is_complete():
    source = b"def default(): return 'def'  # def\n"
    classes, _ = lex(source)
    assert classes[:3].tolist() == [NAME, NAME, KEYWORD]
    assert classes[6] == KEYWORD  # the "def" of "default" is one until the word goes on
    assert set(classes[7:11].tolist()) == {NAME}
    at = source.index(b"'def'")
    assert set(classes[at : at + 5].tolist()) == {STRING}
    assert set(classes[source.index(b"#") : -1].tolist()) == {COMMENT} and classes[-1] == WHITESPACE


def test_depth_counts_blocks_and_brackets():
    source = b"if a:\n  if b:\n    c = f(\n(1)\n)\n  d\n# e\nf\n"
    _, depth = lex(source)
    values = {chr(source[i]): int(depth[i]) for i in range(len(source)) if chr(source[i]) in "abcd1ef"}
    assert values == {"f": 0, "a": 0, "b": 1, "c": 2, "1": 4, "d": 1, "e": 1}
    assert lex(b"x[(1)]")[1].tolist() == [0, 0, 1, 2, 1, 0]  # a bracket belongs to what is around it
    assert lex(b"(" * 40 + b"x")[1].max() == lexer.DEPTHS - 1
    assert lex(b"))))\nx")[1].max() == 0


def test_tabs_reach_the_next_multiple_of_eight():
    assert lex(b"if a:\n        b\n\tc\n")[1][-2] == 1
    assert lex(b"if a:\n    b\n\tc\n")[1][-2] == 2


@pytest.mark.parametrize("name", [name for name, causal in CAUSAL.items() if causal])
def test_causal_fields_do_not_depend_on_later_text(name):
    """Cut the text, or put noise, after every t: values up to t stay as they were."""
    draw = random.Random(0)
    noise = b"'\"#\\\n\r\t ()[]{}0xeE+j._asdefin\xc3\xa9"
    for source in (HARD, SOURCES[0][2000:3000], *(bytes(draw.choices(noise, k=200)) for _ in range(10))):
        whole = annotate(source, "python")[name]
        for t in range(1, len(source)):
            other = source[:t] + bytes(draw.choices(noise, k=draw.choice((0, 1, 5))))
            assert np.array_equal(annotate(other, "python")[name][:t], whole[:t]), (source, t, other)


def test_fields_of_the_tree_are_not_causal_and_not_default():
    before, after = b"x = (1)\n", b"x = (1,\n"
    assert annotate(before, "python")["ast_depth"][0] != annotate(after, "python")["ast_depth"][0]
    assert DEFAULT_FIELDS == ("structure", "dep_level")


@pytest.mark.parametrize("number", range(len(SOURCES)))
def test_classes_agree_with_tokenize(number):
    """On each token's last byte, for real modules (without nested same-quote f-strings)."""
    source = SOURCES[number]
    classes, _ = lex(source)
    starts = np.concatenate(([0], np.flatnonzero(np.frombuffer(source, np.uint8) == 10) + 1))
    lines = source.splitlines(keepends=True)
    kinds = {tokenize.NUMBER: NUMBER, tokenize.STRING: STRING, tokenize.OP: OPERATOR, tokenize.COMMENT: COMMENT}
    checked = 0
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        expected = kinds.get(token.type)
        if token.type == tokenize.NAME:
            expected = KEYWORD if keyword.iskeyword(token.string) else NAME
        if expected is not None and b"f'" not in lines[token.start[0] - 1] and b'f"' not in lines[token.start[0] - 1]:
            last = starts[token.end[0] - 1] + len(lines[token.end[0] - 1].decode()[: token.end[1]].encode()) - 1
            assert classes[last] == expected, token
            checked += 1
    assert checked > 1000


@pytest.mark.parametrize("number", range(len(SOURCES)))
def test_indentation_agrees_with_tokenize(number):
    """Depth at each statement's first byte is the number of open INDENTs."""
    source = SOURCES[number]
    _, depth = lex(source)
    starts = np.concatenate(([0], np.flatnonzero(np.frombuffer(source, np.uint8) == 10) + 1))
    level, fresh, checked = 0, True, 0
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        level += {tokenize.INDENT: 1, tokenize.DEDENT: -1}.get(token.type, 0)
        if fresh and token.type in (tokenize.NAME, tokenize.STRING, tokenize.OP):
            assert depth[starts[token.start[0] - 1] + token.start[1]] == level, token
            fresh, checked = False, checked + 1
        fresh = fresh or token.type == tokenize.NEWLINE
    assert checked > 100


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_tree_columns(newline):
    source = "\ufeffx = 1\nif é:\n  f(a, b'ü')\n".encode().replace(b"\n", newline).replace(b"\xc3\xbc", b"u")
    depth, sibling, kind = syntax_columns(source)
    at = source.index(b"b'u'")
    assert kind[at : at + 4].tolist() == [NODE_CODE["Constant"]] * 4
    assert (depth[at], sibling[at]) == (4, 3)  # If > Expr > Call > third child: after f and a
    assert kind[source.index(b"if")] == NODE_CODE["If"] and sibling[source.index(b"if")] == 2
    assert kind[source.index("é".encode())] == NODE_CODE["Name"]
    assert kind[:3].tolist() == [0, 0, 0] and depth[3] == 2  # the mark; then Assign > Name


def test_tree_columns_against_the_innermost_node():
    source = SOURCES[0]
    depth, _, kind = syntax_columns(source)
    offsets = np.concatenate(([0], np.flatnonzero(np.frombuffer(source, np.uint8) == 10) + 1))
    checked = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            begin = offsets[node.lineno - 1] + node.col_offset
            assert kind[begin] == NODE_CODE["Name"] and depth[begin] > 1
            checked += 1
    assert checked > 500


def test_f_strings_are_leaves():
    kind = syntax_columns(b"f'{a + b}' + c")[2]
    assert set(kind[:10].tolist()) == {NODE_CODE["JoinedStr"]} and kind[-1] == NODE_CODE["Name"]


def test_every_node_type_with_a_position_has_a_code():
    public = [name for name in dir(ast) if not name.startswith("_")]
    known = {name for name in public if "end_lineno" in getattr(getattr(ast, name), "_attributes", ())}
    abstract = {"expr", "stmt", "pattern", "excepthandler", "type_param"}
    deprecated = {"Num", "Str", "Bytes", "NameConstant", "Ellipsis", "Index", "ExtSlice"}
    assert known - abstract - deprecated <= set(NODE_CODE)
    assert max(NODE_CODE.values()) < UNKNOWN_NODE


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"\0",
        b"def (",
        b"'''",
        b"\\",
        b"\xff",
        b"(" * 5000,
        b"-" * 99 + b"1",
        b"x=" + b"-" * 50000 + b"1",
        HARD,
        b"\r",
        b"\f\t \n",
    ],
    ids=range(12),
)
@pytest.mark.parametrize("language", ["python", "text"])
def test_nothing_raises_and_values_stay_in_range(source, language):
    columns = annotate(source, language)
    assert list(columns) == list(FIELDS)
    for name, values in columns.items():
        assert values.dtype == np.uint8 and values.shape == (len(source),)
        assert not values.size or values.max() < FIELDS[name]


def test_plain_text_has_classes_by_character_only():
    columns = annotate("_é 1.#\x01".encode(), "text")
    assert columns["structure"].tolist() == [NAME, NAME, NAME, WHITESPACE, NUMBER, OPERATOR, OPERATOR, lexer.OTHER]
    assert not any(columns[name].any() for name in FIELDS if name != "structure")


def test_a_token_takes_the_value_at_its_last_byte():
    columns = token_columns(b"x def(", np.array([0, 4, 5]), "python")
    assert columns["structure"].tolist() == [NAME, KEYWORD, OPERATOR]
