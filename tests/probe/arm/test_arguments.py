"""Arguments that the probe cannot take: the reproducer's fault, with file and line, and no verdict on any tree."""

import inspect

import pytest
from tiers import sampled
from toy import CORE, FIRST, REPRODUCER, TOTAL, body, edited

from patchlane.base.exits import Exit
from reproducers.base.verdicts import Verdict
from reproducers.probe.api import Probe
from reproducers.probe.arm import arguments
from reproducers.trial.experiment import Misused

CHECK = 'p.error("e", 1.0, 1e-9, reference="0", bug_above=0.5)'
CRASH = "p.attempt('a', print, probe.Signature({}))"
DRAWN = "from hypothesis import strategies as st\np.drawn('d', {}, 1.0, space={}, count={}, reference='0')"
WRONG = {  # {case: (the body of reproduce, the argument that is named)}
    "an exception's class": (CRASH.format("TypeError, 'x', 'toyup/core.py'"), "exception"),
    "an exception with its module": (CRASH.format("'torch.OutOfMemoryError', 'x', 'toyup/core.py'"), "exception"),
    "no pattern": (CRASH.format("'TypeError', '(', 'toyup/core.py'"), "message"),
    "a frame that is a path of this host": (CRASH.format("'TypeError', 'x', '/usr/toyup/core.py'"), "frame"),
    "a signature of one part": (CRASH.format("'TypeError'"), "Signature"),
    "no signature": ("p.attempt('a', print, ('TypeError', 'x', 'y'))", "signature"),
    "a value in place of a call": ("p.guard_attempt('a', 3)", "call"),
    "a call with an argument": ("p.guard_attempt('a', lambda x: x)", "call"),
    "a negative limit": (CHECK.replace("1e-9", "-1e-9"), "limit"),
    "a limit that is not a number": (CHECK.replace("1e-9", "float('nan')"), "limit"),
    "a limit without end": ("p.guard('g', 0.0, float('inf'), reference='0')", "limit"),
    "a limit as text": (CHECK.replace("1e-9", "'1e-9'"), "limit"),
    "a bug under the limit": (CHECK.replace("0.5", "1e-12"), "bug_above"),
    "a text measured": (CHECK.replace("1.0", "'three'"), "measured"),
    "nothing measured": (CHECK.replace("1.0", "None"), "measured"),
    "no reference": ('p.guard("g", 0.0, 1e-9)', "reference"),
    "an empty reference": ('p.guard("g", 0.0, 1e-9, reference=" ")', "reference"),
    "a name that is none": (CHECK.replace('"e"', "7"), "name"),
    "an option that there is not": (CHECK.replace("bug_above", "bug_over"), "bug_over"),
    "a call that there is not": (CHECK.replace("error", "eror"), "eror"),
    "a check twice": (f"{CHECK}\n{CHECK}", "recorded twice"),
    "a note of a list": ("p.note('n', [1])", "measured"),
    "a unit that is none": ("p.note('n', 1, unit=3)", "unit"),
    "a skip without a reason": ("p.skip('s', '')", "reason"),
    "a digest of nothing": ("p.digest('d')", "tensors"),
    "a digest of a list": ("p.digest('d', [1.0])", "tensors"),
    "no cases": (DRAWN.format("lambda n: 0.0", "{'n': st.integers()}", 0), "count"),
    "a value for a strategy": (DRAWN.format("lambda n: 0.0", "{'n': 3}", 2), "space"),
    "a case that is not taken": (DRAWN.format("lambda m: 0.0", "{'n': st.integers()}", 2), "measure"),
    "ranks of none": ("p.ranks(0, lambda rank: 1)", "world"),
    "work without a rank": ("p.ranks(1, lambda: 1)", "work"),
    "a wrong argument in a rank": (f"p.ranks(1, lambda rank: {CHECK.replace('1e-9', '-1')})", "limit"),
    "milliseconds without a GPU": ("p.milliseconds(lambda: 1, 3, 1)", "milliseconds"),
    "half a repeat": ("p.milliseconds(lambda: 1, 0.5, 1)", "repeats"),
    "a module that is no name": ("p.upstream(3)", "name"),
    "a wrong argument that the reproducer swallows": (
        f"try:\n    p.guard('g', 0.0, -1, reference='0')\nexcept Exception:\n    pass\n{CHECK}",
        "limit",
    ),
}


@pytest.mark.parametrize("case", sampled(WRONG, 4))
def test_a_wrong_argument_is_the_reproducer_s_fault(toy, case):
    code, named = WRONG[case]
    with pytest.raises(Misused) as refused:
        toy.run(toy.pack(reproducer=body(code)))
    assert refused.value.exit_code == Exit.USAGE and refused.value.remedy
    place, _, said = refused.value.what.partition(": ")
    assert place.startswith("packs/07_toy/reproducer.py:") and named in said
    line = int(place.rpartition(":")[2])
    assert "p." in toy.pack(reproducer=body(code)).reproducer.read_text().splitlines()[line - 1]


UNBEGUN = {
    "it cannot be read": REPRODUCER.replace("def minimal():", "def minimal(:"),
    "it names what is not there": f"{REPRODUCER.partition('if __name__')[0]}unknown_name\n",
    "main lacks an argument": REPRODUCER.replace(", minimal=minimal", ""),
}


@pytest.mark.parametrize("case", UNBEGUN)
def test_a_reproducer_that_ends_before_the_probe_begins(toy, case):
    with pytest.raises(Misused) as refused:
        toy.run(toy.pack(reproducer=UNBEGUN[case]))
    assert refused.value.exit_code == Exit.USAGE and "packs/07_toy/reproducer.py:" in refused.value.what


def test_what_only_the_patched_tree_gives_wrong_is_the_patch_s_fault(toy):
    nothing = CORE.replace(*TOTAL).replace(*FIRST).replace("    return result\n", "    return None\n", 1)
    values = REPRODUCER.replace("abs(core.total([1, 2, 3]) - 6)", "core.total([1, 2, 3])")
    run = toy.run(toy.pack(toy.patch({**edited(), "toyup/core.py": nothing}), values))
    assert run.ruling.verdict is Verdict.FIX_REGRESSES, run.ruling
    assert run.patched[-1].outcome == "different" and run.patched[-1].exit_code == 1


def test_a_limit_that_only_the_patched_tree_reaches_is_the_reproducer_s_fault(toy):
    late = REPRODUCER.replace(
        '    p.guard("mean"',
        "    if core.first is None or core.total([1]) == 1:\n        p.note('n', 1, unit=3)\n    p.guard(\"mean\"",
    )
    with pytest.raises(Misused, match="unit"):
        toy.run(toy.pack(reproducer=late))


def test_every_public_call_s_arguments_have_a_rule():
    free = {"args", "func", "configs", "parallel", "space", "measure"}
    for call, method in inspect.getmembers(Probe, inspect.isfunction):
        if not call.startswith("_") and call not in arguments.UNCHECKED:
            named = set(inspect.signature(method).parameters) - {"self"}
            assert named - free <= set(arguments.RULES), call


def test_a_search_for_the_simplest_case_is_said(toy):
    code = DRAWN.format("lambda n: float(n)", "{'n': st.integers(0, 1000)}", 20)
    said = "looking for the simplest one"
    assert [line for line in toy.run(toy.pack(reproducer=body(f"{CHECK}\n{code}"))).log if said in line]
    held = code.replace("float(n)", "0.0")
    assert not [line for line in toy.run(toy.pack(reproducer=body(f"{CHECK}\n{held}"))).log if said in line]
