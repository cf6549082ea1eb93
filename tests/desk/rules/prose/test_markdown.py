"""A text as GitHub's parser reads it."""

import sys

import pytest

from patchlane.base.errors import CannotTestHere
from reproducers.desk.rules.prose.markdown import Text

MARKDOWN = """See [it](https://github.com/a/b?x=1&y=2) and `code |`.

| a | b |
|---|---|
| c | d |

```python
x = "| not a table"

y = 1
```

``a ` b`` end
"""


def test_blocks_links_and_prose():
    pytest.importorskip("cmarkgfm")
    text = Text(MARKDOWN)
    assert text.blocks("table") == [(3, 5)] and text.blocks("pre") == [(7, 11)]
    assert text.links == ["https://github.com/a/b?x=1&y=2"]
    assert "code" not in text.prose and "not a table" not in text.prose and "` b" not in text.prose
    assert len(text.prose.splitlines()) == len(MARKDOWN.splitlines())
    assert "code" not in text.shown and "See it and" in text.shown


def test_without_the_parser_nothing_is_said_to_be_right(monkeypatch):
    monkeypatch.setitem(sys.modules, "cmarkgfm", None)
    with pytest.raises(CannotTestHere, match="cmarkgfm"):
        Text("x").links  # noqa: B018
