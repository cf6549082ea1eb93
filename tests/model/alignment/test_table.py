"""The table's cells, its last line, and JSON."""

import json
import math

from rich.console import Console

from model.alignment import table
from model.alignment.comparison import Row, Tie
from model.alignment.table import Alignment

PLAIN = {"against": "reference 1.0", "limit": 1e-5}
EXACT = {"against": "reference 1.0", "limit": 0}


def alignment(*rows, complete=(1, 1)):
    return Alignment(
        size="v4_tiny",
        against="transformers",
        seed=0,
        draws=3,
        wanted=1,
        complete=complete,
        documents=2,
        tokens=51,
        rows=rows,
    )


ROWS = (
    Row(layer="1", module="norm", kind="values", off=3e-7, draws=3, where="weight", **PLAIN),
    Row(layer="2", module="top-k", kind="choices", draws=3, ties=(Tie(seed=4, token=9, margin=2e-7),), **EXACT),
    Row(layer="2", module="core", kind="values", off=math.inf, draws=2, **PLAIN),
    Row(layer="MTP", module="experts", kind="choices", off=5, draws=2, where="token 7", **EXACT),
    Row(layer="MTP", module="logits", kind="values", draws=0, **PLAIN),
)


def test_each_row_says_difference_limit_verdict_and_ties():
    console = Console(width=200, record=True)
    console.print(table.drawn(alignment(*ROWS)))
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in console.export_text().splitlines()]
    assert [line for line in lines if line and line[0]] == [
        ["1", "norm", "reference 1.0", "values", "3.0e-07", "1e-05", "holds", "weight"],
        ["2", "top-k", "reference 1.0", "choices", "identical", "0", "holds", "tie at token 9 of seed 4 by 2e-07"],
        ["2", "core", "reference 1.0", "values", "inf", "1e-05", "differs, in 2 of 3 draws", ""],
        ["MTP", "experts", "reference 1.0", "choices", "5", "0", "differs, in 2 of 3 draws", "token 7"],
        ["MTP", "logits", "reference 1.0", "values", "", "1e-05", "not compared", ""],
    ]


def test_the_last_line_names_the_first_that_does_not_hold():
    assert "layer 2, core (values, against reference 1.0)" in table.verdict(alignment(*ROWS))
    assert "MTP, experts (choices" in table.verdict(alignment(*ROWS[:2], ROWS[3]))
    assert "MTP, logits" in table.verdict(alignment(ROWS[4]))
    assert table.verdict(alignment(*ROWS[:2])) == "all 2 rows hold"
    assert "1 of 2" not in table.verdict(alignment(*ROWS[:2])) and "0 of 1" in table.verdict(
        alignment(*ROWS[:2], complete=(1, 0))
    )


def test_json_has_the_verdicts_and_what_is_infinite_as_a_text():
    said = json.loads(json.dumps(alignment(*ROWS).said(), allow_nan=False))
    assert [row["verdict"] for row in said["rows"]] == ["holds", "holds", "differs", "differs", "not compared"]
    assert said["first"] == said["rows"][2] and said["rows"][2]["off"] == "Infinity" and not said["holds"]
    assert said["rows"][1]["ties"] == [{"seed": 4, "token": 9, "margin": 2e-7}] and said["complete"] == [1, 1]
    good = alignment(*ROWS[:2]).said()
    assert good["first"] is None and good["holds"]
