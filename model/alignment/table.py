"""The alignment of a size with a reference, as a table and as JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict
from rich.markup import escape
from rich.table import Column, Table

from model.alignment.comparison import Row


class Alignment(BaseModel):
    """``rows`` in forward order, of gradients in backward order; draws of ``seed`` and on, ``documents`` of ``tokens``
    tokens each.

    ``complete``: how many of each variant had no tie, behind which nothing is compared; ``wanted`` of each are enough.
    """

    model_config = ConfigDict(frozen=True)

    size: str
    against: str
    seed: int
    draws: int
    wanted: int
    complete: tuple[int, ...]
    documents: int
    tokens: int
    rows: tuple[Row, ...]

    @property
    def holds(self) -> bool:
        """Whether all rows do, over enough draws."""
        return self.first is None and min(self.complete) >= self.wanted

    @property
    def first(self) -> Row | None:
        """The first row that does not hold."""
        return next((row for row in self.rows if row.verdict != "holds"), None)

    def said(self) -> dict[str, Any]:
        """For JSON, with verdicts and the first row that does not hold; what is infinite or no number is a text."""
        rows = [json.loads(row.model_dump_json()) | {"verdict": row.verdict} for row in self.rows]
        first = next((row for row in rows if row["verdict"] != "holds"), None)
        return self.model_dump(exclude={"rows"}) | {"holds": self.holds, "first": first, "rows": rows}


def drawn(found: Alignment) -> Table:
    """The table."""
    title = f"{found.size} against {found.against}: {found.draws} draws of {found.documents} x {found.tokens} tokens"
    table = Table(
        *("layer", "module", "against", "kind"),
        Column("off", justify="right"),
        Column("limit", justify="right"),
        "verdict",
        Column("where", overflow="fold"),
        title=escape(title),
    )
    for _, rows in itertools.groupby(found.rows, lambda row: row.layer):
        for row in rows:
            table.add_row(*map(escape, _cells(row, found.draws)))
        table.add_section()
    return table


def _cells(row: Row, draws: int) -> Iterator[str]:
    yield from (row.layer, row.module, row.against, row.kind)
    exact = row.kind in ("choices", "bits")
    yield "" if not row.draws else ("identical" if not row.off else f"{row.off:.0f}") if exact else f"{row.off:.1e}"
    yield "0" if exact else f"{row.limit:.0e}"
    yield row.verdict + (f", in {row.draws} of {draws} draws" if 0 < row.draws < draws else "")
    ties = [f"tie at token {tie.token} of seed {tie.seed} by {tie.margin:.0e}" for tie in row.ties]
    yield "; ".join([row.where, *ties] if row.where else ties)


def verdict(found: Alignment) -> str:
    """Which module is over its limit first, as the forward pass, then the backward pass comes to them."""
    row = found.first
    if found.holds:
        return f"all {len(found.rows)} rows hold"
    if row is None:
        return f"{min(found.complete)} of {found.wanted} draws are complete, ties ended the others: try another --seed"
    place = f"layer {row.layer}" if row.layer.isdecimal() else row.layer
    return f"first over its limit: {place}, {row.module} ({row.kind}, against {row.against})"
