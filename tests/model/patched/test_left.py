"""Known bugs that a run leaves in its stack."""

from types import SimpleNamespace

import pytest

from model.patched import left, overlay, stacks
from reproducers.record import schema


def stack_of(name, device, patched):
    """An overlay of a whole stack, all of its packs' patches in it or none; what ``left`` reads of it."""
    stack = stacks.named(name)
    needs = [need for one in stack.needs[device] for need in schema.load_needs(schema.ROOT / "packs")[one]]
    applied = overlay.candidates(schema.load_packs(), stack) if patched else []
    return SimpleNamespace(
        stack=stack,
        packs=[SimpleNamespace(pack=pack) for pack in applied],
        needs=[SimpleNamespace(origin=SimpleNamespace(distribution=n.distribution, release=n.release)) for n in needs],
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", stacks.load())
def test_of_each_stack_somebody_said_why_what_is_left_is_fine(name, device):
    found = left.left(stack_of(name, device, patched=True))
    assert {one.why for one in found}.isdisjoint({left.NO_WHY, left.OPTION})
    assert {one.pack for one in found} <= {f"pack{number:02d}" for number in stacks.named(name).unpatched}


def test_what_stands_beside_the_code_under_test_counts():
    on_cpu, on_gpu = (left.left(stack_of("released", device, patched=True)) for device in ("cpu", "cuda"))
    assert [one.pack for one in on_cpu] == ["pack03", "pack62"]
    assert [one.pack for one in on_gpu] == ["pack03", "pack08", "pack13", "pack62", "pack72"]
    assert {one.harm for one in on_gpu if one.pack not in ("pack62", "pack72")} == {"crash"}


def test_what_patches_leaves_out_is_told_as_that():
    found = {one.pack: one.why for one in left.left(stack_of("released", "cuda", patched=False))}
    assert found["pack16"] == found["pack09"] == left.OPTION != found["pack03"]
    assert len(found) > 20


def test_a_bug_that_another_library_mends_is_left_only_beside_an_older_one():
    newest = {one.pack for one in left.left(stack_of("newest", "cuda", patched=False))}
    assert "pack34" in {one.pack for one in left.left(stack_of("released", "cuda", patched=False))}
    assert newest.isdisjoint({"pack34", "pack09"})


def test_a_bug_of_which_nobody_said_why_is_told():
    stack = stack_of("released", "cuda", patched=True)
    stack.stack = stack.stack.model_copy(update={"unpatched": {}})
    found = left.left(stack)
    assert {one.why for one in found} == {left.NO_WHY}
    line = left.told(found)
    assert line.count("\n") == 0 and line.index("pack03") < line.index("pack13") < line.index(left.NO_WHY)
    assert "pack" not in left.told([])
