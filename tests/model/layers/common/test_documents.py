"""Places of tokens within their documents."""

import gc
import weakref

import pytest
import torch

from model.layers.common import documents


def test_places_begin_anew_with_each_document_and_empty_ones_take_none():
    cu_seqlens = torch.tensor([0, 0, 3, 3, 4, 6, 6]).int()
    assert documents.positions(cu_seqlens, 6).tolist() == [0, 1, 2, 0, 0, 1]


@pytest.mark.parametrize(
    ("cu_seqlens", "named"),
    [
        (torch.tensor([0, 5]).int(), r"\b6\b.*\[0, 5\]"),
        (torch.tensor([0, 4, 3, 6]).int(), r"\b6\b.*\[0, 4, 3, 6\]"),
        (torch.tensor([1, 6]).int(), r"\b6\b.*\[1, 6\]"),
        (torch.tensor([[0, 6]]).int(), r"torch.int32 \[1, 2\]"),
        (torch.tensor([0.0, 6.0]), r"torch.float32 \[2\]"),
    ],
)
def test_what_does_not_describe_the_stream_is_refused(cu_seqlens, named):
    with pytest.raises(ValueError, match=named):
        documents.positions(cu_seqlens, 6)


def bounds():
    return torch.tensor([0, 2, 6]).int()


def test_places_and_first_tokens_are_made_once_for_the_same_bounds_and_tokens():
    cu_seqlens = bounds()
    place, first = documents.positions(cu_seqlens, 6), documents.firsts(cu_seqlens, 6)
    assert documents.positions(cu_seqlens, 6) is place and documents.firsts(cu_seqlens, 6) is first
    assert place.tolist() == [0, 1, 0, 1, 2, 3] and first.tolist() == [True, False, True, False, False, False]
    assert (place.dtype, first.dtype) == (torch.int64, torch.bool)
    assert documents.positions(bounds(), 6) is not place


def test_places_are_made_anew_once_bounds_were_written_to():
    cu_seqlens = bounds()
    documents.firsts(cu_seqlens, 6)
    cu_seqlens[1] = 4
    assert documents.positions(cu_seqlens, 6).tolist() == [0, 1, 2, 3, 0, 1]
    assert documents.firsts(cu_seqlens, 6).tolist() == [True, False, False, False, True, False]
    cu_seqlens[2] = 7
    assert documents.positions(cu_seqlens, 7).tolist() == [0, 1, 2, 3, 0, 1, 2]
    with pytest.raises(ValueError, match=r"\[0, 4, 7\]"):
        documents.positions(cu_seqlens, 6)


def test_places_of_another_number_of_tokens_are_others(monkeypatch):
    monkeypatch.setattr(documents, "check", lambda cu_seqlens, tokens: None)  # on a GPU it does not read the bounds
    cu_seqlens = bounds()
    documents.firsts(cu_seqlens, 6)
    assert documents.positions(cu_seqlens, 4).tolist() == [0, 1, 0, 1]
    assert documents.firsts(cu_seqlens, 4).tolist() == [True, False, True, False]


@pytest.fixture
def collected():
    """The collector looks at what a test makes alone: at all that thousands of others left it looks for seconds."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_results_go_with_their_bounds(collected):
    cu_seqlens = bounds()
    made, before = weakref.ref(documents.positions(cu_seqlens, 6)), len(documents._made)
    gc.collect()
    assert made() is not None
    del cu_seqlens
    gc.collect()
    assert made() is None and len(documents._made) == before - 1


def test_results_stay_while_a_backward_pass_holds_the_bounds(collected):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, cu_seqlens):
            ctx.save_for_backward(cu_seqlens)
            ctx.place = weakref.ref(documents.positions(cu_seqlens, 6))
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            (cu_seqlens,) = ctx.saved_tensors
            assert documents.positions(cu_seqlens, 6) is ctx.place()
            return 2 * grad, None

    x = torch.ones(6, requires_grad=True)
    y = Double.apply(x, bounds())
    gc.collect()
    y.sum().backward()
    assert x.grad.tolist() == [2.0] * 6


@pytest.mark.parametrize("when", ["captured", "inference", "bounds of inference"])
def test_nothing_is_kept_or_used_where_it_would_not_hold(when, monkeypatch):
    cu_seqlens = bounds()
    if when == "bounds of inference":
        with torch.inference_mode():
            cu_seqlens = bounds()
    kept = documents.positions(cu_seqlens, 6)
    monkeypatch.setattr(documents, "_captured", lambda x: when == "captured")
    with torch.inference_mode(when == "inference"):
        made = documents.positions(cu_seqlens, 6)
        assert made is not kept and made.tolist() == kept.tolist()
    monkeypatch.undo()
    again = documents.positions(cu_seqlens, 6)
    assert again is not made and not again.is_inference()
    assert (again is kept) == (when != "bounds of inference")
