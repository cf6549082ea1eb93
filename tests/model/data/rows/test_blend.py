"""Blends: proportions, the same rows whatever the ranks, resuming, and what may not be blended."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from data_kit import BYTES, make_dataset

from model.data.errors import DataError
from model.data.rows.blend import Blend, Part, of, part
from model.data.rows.loader import Loader
from model.data.rows.turns import Turns
from model.data.stored.dataset import Dataset

S = 64


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Three datasets: one of some 130 rows, one of half as many, one of a few."""
    root = tmp_path_factory.mktemp("blend")
    sizes = {"large": 60, "middle": 30, "small": 8}
    return {
        name: make_dataset(root, name, documents=count, longest=300, seed=at).folder
        for at, (name, count) in enumerate(sizes.items())
    }


@pytest.fixture(scope="module")
def blend(folders):
    weights = {"large": "0.55", "middle": "0.3", "small": "0.15"}
    return of([part(f"{weights[name]}:{folder}") for name, folder in folders.items()])


def rows(batches):
    return torch.cat([batch.tokens.view(-1, S) for batch in batches])


def take(loader, count):
    return [next(loader) for _ in range(count)]


@pytest.mark.parametrize(("micro_batch", "world"), [(8, 1), (4, 2), (2, 4), (1, 8), (24, 1), (3, 8)])
def test_ranks_together_see_what_one_sees(blend, micro_batch, world):
    alone = rows(take(Loader(blend, "train", S, 1, seed=4), 96))
    ranks = [Loader(blend, "train", S, micro_batch, rank, world, seed=4) for rank in range(world)]
    steps = 96 // (micro_batch * world)
    parts = [[next(loader).tokens.view(micro_batch, S) for loader in ranks] for _ in range(steps)]
    together = torch.cat([torch.stack(step, dim=1).reshape(-1, S) for step in parts])
    assert torch.equal(together, alone)
    assert len({str(loader.state_dict()) for loader in ranks}) == 1


def test_a_row_is_the_datasets_own_next_one_and_each_repeats_by_its_own_epochs(blend, folders):
    """The blend's rows of a dataset, in order, are that dataset's rows alone under its seed."""
    loader, turns = Loader(blend, "train", S, 1, seed=4), Turns(blend.shares)
    given = {at: [] for at in range(3)}
    for number, batch in enumerate(take(loader, 300)):
        given[turns.at(number)[0]].append(batch.tokens)
    small = Loader(Dataset(folders["small"]), "train", S, 1, seed=loader._sources[2]._packing.seed)
    assert len(given[2]) > 2 * small.rows > 0
    assert torch.equal(torch.stack(given[2]), rows(take(small, len(given[2]))))
    one, two = (torch.stack(given[2][a : a + small.rows]) for a in (0, small.rows))
    assert not torch.equal(one, two)
    assert [len(own) for own in given.values()] == [165, 90, 45]
    assert len({source._packing.seed for source in loader._sources}) == 3


def test_resume_in_the_middle_goes_on_as_if_never_interrupted_on_other_ranks_too(blend):
    whole = rows(take(Loader(blend, "train", S, 2, seed=3), 160))
    first = Loader(blend, "train", S, 2, seed=3)
    take(first, 75)
    state = first.state_dict()
    assert state["consumed"] == 150
    second = Loader(blend, "train", S, 5, seed=3)
    second.load_state_dict(state)
    assert torch.equal(rows(take(second, 34)), whole[150:])
    four = [Loader(blend, "train", S, 1, rank, 4, seed=3) for rank in range(4)]
    for loader in four:
        loader.load_state_dict(state)
    assert torch.equal(torch.stack([next(loader).tokens for loader in four]), whole[150:154])


def test_a_state_keeps_what_each_dataset_has_had_and_one_without_it_still_goes_on(blend):
    whole = rows(take(Loader(blend, "train", S, 1, seed=3), 90))
    first = Loader(blend, "train", S, 3, seed=3)
    take(first, 20)
    first.leave_out(48)  # 48 to 59 are never taken again
    state = first.state_dict()
    assert sum(state["drawn"]) == 60 and state["consumed"] == 48
    of_before = {name: value for name, value in state.items() if name != "drawn"}
    for given in (state, of_before):
        second = Loader(blend, "train", S, 1, seed=3)
        second.load_state_dict(given)
        assert torch.equal(rows(take(second, 30)), whole[60:])


@pytest.mark.parametrize("drawn", [[40, 11, 9], [60, 0, 0], [33, 18], [33, 18, 10]])
def test_counts_that_the_weights_never_have_are_refused(drawn, blend):
    first = Loader(blend, "train", S, 3, seed=3)
    take(first, 20)
    with pytest.raises(DataError, match="cannot have had"):
        Loader(blend, "train", S, 1, seed=3).load_state_dict(first.state_dict() | {"drawn": drawn})


def test_another_blends_state_is_refused(blend, folders):
    state = Loader(blend, "train", S, 2).state_dict()
    names = [*folders]
    for other, field in [
        (of([part(f"1:{folders[name]}") for name in names]), "weights"),
        (of([part(f"{w}:{folders[name]}") for w, name in zip((55, 30, 15), reversed(names), strict=True)]), "dataset"),
        (of([part(f"{w}:{folders[name]}") for w, name in zip((55, 45), names, strict=False)]), "weights"),
        (Dataset(folders["large"]), "dataset"),
    ]:
        loader = Loader(other, "train", S, 2)
        with pytest.raises(DataError, match=f"its {field} is "):
            loader.load_state_dict(state)
        assert loader.consumed == 0
    same = of([part(f"{w}:{folders[name]}") for w, name in zip((11, 6, 3), names, strict=True)])
    Loader(same, "train", S, 2).load_state_dict(state)


@pytest.mark.parametrize(("micro_batch", "world"), [(1, 1), (3, 1), (2, 3)])
def test_held_out_rows_end_before_a_dataset_repeats(blend, micro_batch, world):
    loaders = [Loader(blend, "valid", S, micro_batch, rank, world) for rank in range(world)]
    counted = [[int((batch.loss_mask.view(-1, S).sum(1) > 0).sum()) for batch in each.first(10**6)] for each in loaders]
    whole = Loader(blend, "valid", S, 1)
    assert sum(map(sum, counted)) == whole.rows < sum(source.rows for source in whole._sources)
    at, row = whole._turns.at(whole.rows)
    assert row == whole._sources[at].rows
    assert [len(each.first(5)) for each in loaders] == [-(-5 // (micro_batch * world))] * world


def test_names_weights_and_what_is_evaluated(folders):
    large, small = folders["large"], folders["small"]
    extra = part(f"own={folders['middle']}")
    blend = of([part(f"6:{large}"), part(f"2:code={small}")], [extra])
    assert [(one["name"], one["weight"]) for one in blend.described()] == [("large", 0.75), ("code", 0.25)]
    assert list(blend.evaluated(S)) == [None, "large", "code", "own"]
    assert blend.evaluated(S)["code"].digest == Dataset(small).record.digest
    assert blend.unigram_entropy is None and blend.digest != of([part(f"1:{large}"), part(f"1:{small}")]).digest
    alone = of([part(str(large))], [extra])
    assert list(alone.evaluated(S)) == [None, "own"] and alone.shares == (1,)
    assert alone.digest == Dataset(large).record.digest and alone.unigram_entropy > 0


@pytest.mark.parametrize("percent", [0, 10])
def test_a_part_that_holds_out_less_than_a_row_is_left_out_of_the_evaluation(percent, folders, tmp_path):
    bare = make_dataset(tmp_path, "bare", replace(BYTES, valid_percent=percent), documents=9, longest=20).folder
    blend = of([part(f"5:{folders['large']}"), part(f"3:{folders['middle']}"), part(f"2:{bare}")])
    assert [one.name for one in blend.unevaluated(S)] == ["bare"]
    found = blend.evaluated(S)
    assert list(found) == [None, "large", "middle"] and found[None].shares == (Fraction(5, 8), Fraction(3, 8))
    assert [Loader(one, "valid", S, 1).rows > 0 for one in found.values()] == [True] * 3
    assert of([part(str(bare))]).evaluated(S) == {}


@pytest.mark.parametrize(
    ("texts", "held_out"),
    [
        (["{large}", "{small}"], []),
        (["1:{large}", "{small}"], []),
        (["1:{large}", "2:{large}"], []),
        (["1:one={large}", "2:one={small}"], []),
        (["1:{large}", "2:{small}"], ["small={middle}"]),
        (["{large}"], ["one={middle}", "one={small}"]),
        (["{large}"], ["1:one={middle}"]),
    ],
)
def test_what_cannot_be_blended_is_refused(folders, texts, held_out):
    with pytest.raises(DataError) as refused:
        of([part(text.format(**folders)) for text in texts], [part(text.format(**folders)) for text in held_out])
    assert refused.value.remedy and "\n" not in refused.value.what


@pytest.mark.parametrize("text", ["", "0:{}", "-1:{}", "x:{}", "nan:{}", "1:none", "1:name="])
def test_no_part(folders, text):
    with pytest.raises(DataError):
        part(text.format(folders["large"]))


def test_the_language_of_a_blend_is_text_where_its_parts_have_two(folders):
    texts = Dataset(folders["large"])
    code = Dataset(folders["small"])
    corpus = code.record.corpus.model_copy(update={"options": {"language": "python"}})
    code.record = code.record.model_copy(update={"corpus": corpus})
    mixed = of([Part("a", code, Fraction(1)), Part("b", texts, Fraction(1))])
    assert (of([Part("a", code)]).encoding.language, mixed.encoding.language) == ("python", "text")
    assert mixed.encoding.tokenizer == texts.record.tokenizer and mixed.encoding.fields == texts.record.fields


def test_other_tokenizers_and_fields_are_refused(folders, tmp_path):
    plain = make_dataset(tmp_path, "plain", replace(BYTES, structure=False), documents=10, seed=7)
    with pytest.raises(DataError, match="another field"):
        of([part(f"1:{folders['large']}"), Part("plain", plain, Fraction(1))])
    record = plain.record.model_copy(update={"tokenizer": plain.record.tokenizer.model_copy(update={"eod": 0})})
    plain.record = record
    with pytest.raises(DataError, match="another tokenizer"):
        of([part(str(folders["large"]))], [Part("plain", plain)])


def test_a_dataset_without_held_out_rows_is_named(folders, tmp_path):
    bare = make_dataset(tmp_path, "bare", replace(BYTES, valid_percent=0), documents=10, seed=8)
    both = Blend((Part("large", Dataset(folders["large"]), Fraction(1, 2)), Part("bare", bare, Fraction(1, 2))))
    with pytest.raises(DataError, match="bare, valid"):
        Loader(both, "valid", S, 1)
