"""pip's RECORD: rows of changed files tell what they are, all others stay letter by letter."""

import base64
import hashlib

import pytest
from toy import write_tree

from patchlane.applied.recorded import record_of, updated

ROWS = (
    "toyup/core.py,sha256=old,1",
    '"toyup/a,b.py",sha256=keep,2',
    "toyup/gone.py,sha256=x,3",
    "toyup-1.0.dist-info/RECORD,,",
)
TEXT = "".join(f"{row}\r\n" for row in ROWS)


def row(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(content)}"


def test_rows_are_replaced_removed_and_added():
    found = updated(TEXT, {"toyup/core.py": b"new", "toyup/gone.py": None, "toyup/fresh.py": b""})
    kept = TEXT.splitlines(keepends=True)
    assert found == f"{row('toyup/core.py', b'new')}\r\n{kept[1]}{kept[3]}{row('toyup/fresh.py', b'')}\r\n"
    assert updated(TEXT, {}) == TEXT and updated("a,,", {"b": b""}).startswith("a,,\n")


@pytest.mark.parametrize(
    ("name", "version", "found"), [("Toy.Up", "1.0", True), ("toyup", "1.0", False), ("toy-up", "1.1", False)]
)
def test_the_record_of_a_distribution(tmp_path, name, version, found):
    write_tree(tmp_path, {"toy_up-1.0.dist-info/RECORD": TEXT, "toy_up_more-1.0.dist-info/RECORD": ""})
    assert record_of(tmp_path, name, version) == (tmp_path / "toy_up-1.0.dist-info" / "RECORD" if found else None)
