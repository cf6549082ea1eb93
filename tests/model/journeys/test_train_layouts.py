"""The same steps on one rank, two expert-parallel ones and two pipeline stages; checkpoints go from each to each."""

import itertools

import pytest
from train_kit import copy, good, measured, train

pytestmark = pytest.mark.upstream
# Sums of fp32 in another order: 2⁻²⁴ a sum, through three updates of AdamW; 1e-7 was seen.
RELATIVE = 2e-6
ABSOLUTE = 2e-8  # of the indexer's loss, 6e-6 here: a difference of two entropies of some 3 nats
ONE = {"accumulate": 2}
LAYOUTS = {"ep": {"world": 2, "ep": 2, "accumulate": 1}, "pp": {"world": 2, "pp": 2, "accumulate": 2}}
COMMON = {"steps": 9, "evaluate_every": 9, "save_every": 9, "deterministic": True, "fp32": True}


@pytest.fixture(scope="module", params=["nam56r_tiny", "v4_tiny"])
def runs(request, stack, text, tmp_path_factory):
    """Run directories: three steps on one rank, then six in each layout; what two ranks saved after three goes on on
    one, and what one rank saved on two."""
    folder, common = tmp_path_factory.mktemp("layouts"), COMMON | {"first": request.param}
    good(train(stack, folder / "begun", text, stop_after=3, **ONE, **common))
    found = {name: copy(folder / "begun", folder / name) for name in ("one", *LAYOUTS)}
    good(train(stack, found["one"], text, rows=folder / "one.txt", **ONE, **common))
    for name, layout in LAYOUTS.items():
        good(train(stack, found[name], text, rows=folder / f"{name}.txt", stop_after=6, **layout, **common))
        found[f"{name} one"] = copy(found[name], folder / f"{name}-one")
        good(train(stack, found[f"{name} one"], text, **ONE, **common))
    return found


@pytest.mark.parametrize("name", [*LAYOUTS, "ep one", "pp one"])
def test_losses_and_gradient_norms_are_those_of_one_rank(runs, name):
    want, got = measured(runs["one"], first=4), measured(runs[name], first=4)
    assert len(got) == (3 if name in LAYOUTS else 6)
    for ours, theirs in zip(got, want, strict=False):
        assert ours[:2] == theirs[:2]
        assert ours[2:] == pytest.approx(theirs[2:], rel=RELATIVE, abs=ABSOLUTE)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_rows_of_a_step_are_the_same(runs, name):
    def rows(which):
        """{step: digests of its rows}."""
        lines = sorted({tuple(x.split()) for x in (runs["one"].parent / f"{which}.txt").read_text().splitlines()})
        return {step: [digest for _, digest in group] for step, group in itertools.groupby(lines, lambda x: x[0])}

    ours, theirs = rows(name), rows("one")
    assert {step: len(digests) for step, digests in ours.items()} == {"4": 2, "5": 2, "6": 2}
    assert ours == {step: theirs[step] for step in ours}
