"""Stacks: which there are, what each pack is worth on one, and that every validated patch is in a run of some stack."""

import shutil

import pytest

from model.patched import lock_file, overlay, stacks
from model.patched.stacks import FILE, Worth
from patchlane.base.errors import PatchlaneError
from reproducers.base.verdicts import Verdict
from reproducers.record import entry
from reproducers.record.schema import RELEASES, ROOT, load_needs, load_packs
from reproducers.upstream.store import Store

NAMES = list(stacks.load())
ENTRIES = entry.read(ROOT / "manifest.yaml").packs


def test_the_first_is_the_default():
    assert NAMES[0] == stacks.DEFAULT == stacks.named().name
    assert stacks.named().lock.name == "patches.lock"
    with pytest.raises(PatchlaneError, match="no stack is named 'other'") as caught:
        stacks.named("other")
    assert "newest" in caught.value.remedy


@pytest.mark.parametrize("name", NAMES)
def test_needs_and_absent_packs_are_known(name):
    stack, sets = stacks.named(name), load_needs(ROOT / "packs")
    assert set(stack.needs["cuda"]) <= set(sets)
    assert set(stack.absent) <= {pack.number for pack in load_packs()}


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("release: 0.19.2}", "release: 0.19.2, needs: [x]}", "stacks.newest"),
        ("release: 0.19.2}", "release: 0.19.7}", r"stacks\.yaml:32: stacks\.newest\.code\.megatron-core\.release: "),
        ("      cpu: []\n      cuda: [", "      tpu: []\n      cuda: [", "stacks.newest"),
        ("    about: Megatron-LM", "    aboot: Megatron-LM", "stacks.dev.about"),
    ],
)
def test_a_bad_file_is_named_with_its_field(tmp_path, old, new, field):
    text = FILE.read_text()
    assert old in text
    (tmp_path / "stacks.yaml").write_text(text.replace(old, new))
    with pytest.raises(PatchlaneError, match=field):
        stacks.load(tmp_path / "stacks.yaml")


def test_every_release_is_named_by_a_pin_a_need_or_a_stack(tmp_path):
    stacks.refuse_idle()
    packs = tmp_path / "packs"
    shutil.copytree(ROOT / "packs", packs)
    with (packs / RELEASES).open("a") as sink:
        sink.write(f"zz:\n  '1':\n    artifacts: {{zz-1.tar.gz: {'a' * 64}}}\n")
    line = (packs / RELEASES).read_text().count("\n") - 1
    with pytest.raises(PatchlaneError, match=rf"releases\.yaml:{line}: zz\.1: ") as caught:
        stacks.refuse_idle(packs)
    assert caught.value.remedy == "take it out of packs/releases.yaml"


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_has_the_packs_that_a_run_takes(name):
    stack = stacks.named(name)
    assert list(lock_file.read(stack).packs) == [pack.id for pack in overlay.chosen("all", stack=stack)]


@pytest.mark.upstream
@pytest.mark.parametrize("name", NAMES)
def test_the_lock_and_the_page_are_what_the_packs_give(name):
    stack = stacks.named(name)
    try:
        built = overlay.build(Store(), overlay.chosen("all", stack=stack), "cpu", stack)
    except (PatchlaneError, OSError) as lacking:
        pytest.skip(str(lacking))
    assert stack.lock.read_text() == lock_file.render(lock_file.of(built), stack)
    found = overlay.standings(Store(), stack)
    assert [s.pack.id for s in found if s.worth is Worth.NEEDED] == list(lock_file.read(stack).packs)
    page = (ROOT / "docs" / "stacks.md").read_text()
    for standing in found:
        assert f"| {standing.pack.id} | {standing.pack.title} | {standing.worth.value} | {standing.reason} |" in page


def at(number):
    return next(pack for pack in load_packs() if pack.number == number)


@pytest.mark.parametrize(
    ("verdict", "mended"),
    [
        (Verdict.REPRODUCED_AND_FIXED, True),
        (Verdict.REPRODUCED, False),
        (Verdict.FIXED_UPSTREAM, False),
        (None, False),
    ],
)
def test_off_its_own_pin_a_pack_is_taken_by_its_receipt_alone(verdict, mended):
    tried = {} if verdict is None else {"0.19.2": verdict}
    known = ENTRIES["pack12"].model_copy(update={"tried": tried})
    assert stacks.mended(stacks.named("newest"), at(12), known) is mended
    assert stacks.mended(stacks.named(), at(12), known)


def test_the_needs_tell_pins_of_one_release_apart():
    assert stacks.named().pin_name(at(34)) == "live"
    assert stacks.named("newest").pin_name(at(34)) == "newest"
    beside = stacks.named().model_copy(
        update={"needs": {"cpu": [], "cuda": ["transformer-engine-2.20.2", "pydantic-2.14.3"]}}
    )
    assert beside.pin_name(at(34)) == "newest_te"
    assert not stacks.mended(beside, at(34), ENTRIES["pack34"])


def test_a_pack_of_another_tree_is_refused_by_name():
    with pytest.raises(PatchlaneError, match="pack10 has no patch for the stack newest") as caught:
        overlay.chosen("10", stack=stacks.named("newest"))
    assert "python -m model.lock table --stack newest" in caught.value.remedy


@pytest.mark.upstream
def test_what_each_worth_says():
    stack = stacks.named("newest")
    try:
        tree = overlay.pristine(Store(), stack)["megatron-core"]
    except (PatchlaneError, OSError) as lacking:
        pytest.skip(str(lacking))

    def worth(number, **tried):
        known = ENTRIES[at(number).id].model_copy(update={"tried": {k.replace("_", "."): v for k, v in tried.items()}})
        standing = stacks.standing(stack, at(number), known, tree)
        return standing.worth, standing.reason

    assert worth(12)[0] is Worth.UNTRIED
    assert worth(10) == (Worth.ABSENT, stack.absent[10])
    assert worth(34)[0] is Worth.GONE
    assert worth(3)[0] is Worth.HELD
