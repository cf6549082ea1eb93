"""The reproducer of an alarm is Python for every target, whatever fails."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from reproducers.studies.hunt import corpus, filing, kit, limits, relations, targets

RUFF = Path(sys.executable).with_name("ruff")
EVERY = [
    pytest.param(name, target, id=f"{name}-{target.name}")
    for name, of in targets.UPSTREAMS.items()
    for target in importlib.import_module(of.targets).TARGETS
]


@pytest.mark.parametrize(("distribution", "target"), EVERY)
def test_a_reproducer_defines_what_it_calls(distribution, target):
    case = {
        "sizes": {name: values[-1] for name, values in target.sizes.items()},
        "options": {name: values[-1] for name, values in target.options.items()},
        "needs": [operand.name for operand in target.operands if operand.grad],
        "weights": ["signed", "plain"],
    }
    for relation, raised in (("reference", ""), ("rows", ""), ("unchanged", ""), ("runs", "IndexError in a.py:f: out")):
        alarm = corpus.Alarm(
            distribution=distribution,
            release="1.0",
            target=target.name,
            symbol=target.symbol,
            relation=relation,
            what="output 0",
            error=1.0,
            limit=0.0,
            raised=raised,
            case=case,
            seed=0,
        )
        text = filing.reproducer(alarm, targets.UPSTREAMS[distribution], 62)
        tree = ast.parse(text)
        names = [str(RUFF), "check", "--isolated", "--select", "F821,F811", "-"]
        assert subprocess.run(names, input=text, text=True, capture_output=True).returncode == 0
        defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        assert len(defined) == len(set(defined)), "two of one name"
        used = {target.call, target.reference} - {None}
        assert {function.__name__ for function in used} <= set(defined)
        assert {"Bench", "minimal", "reproduce"} <= set(defined)


def test_no_reference_has_the_name_of_what_stands_beside_it():
    ours = {name for module in (kit, limits, relations) for name in vars(module)}
    theirs = {f.__name__ for _, target in (row.values for row in EVERY) for f in (target.call, target.reference) if f}
    assert ours & theirs == set()
