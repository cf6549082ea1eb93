"""What the sparse layers put in the place of upstream's: by path, and for both of upstream's ways to the loss."""

import pytest
import tiny

pytestmark = pytest.mark.upstream
ARGUMENTS = ("q", "w", "k", "query", "key", 0.5, 3, 1.0, True, "groups", "starts", "ends", None, False, True, 33)


def replaced(path, patched):
    """What upstream's forward finds under its own names; ``patched``: whether it has pack 52's."""
    from unittest import mock

    from megatron.core.transformer.experimental_attention_variant import dsa

    names, found = ("FusedDSAIndexerLoss", "packed_indexer_loss"), []

    def forward(self, *args, **kwargs):
        found.append([getattr(getattr(dsa, name, None), "__qualname__", "ours") for name in names])
        return "done"

    layer = tiny.layer(5).self_attention.core_attention
    paths = {**layer.config.nam56r_paths, "indexer": mock.Mock()}
    paths["indexer"].name = path
    record = tiny.packed()
    with (
        mock.patch.object(layer.config, "nam56r_paths", paths),
        mock.patch.object(dsa.DSAttention, "forward", forward),
        mock.patch.object(dsa, "packed_indexer_loss", lambda *given: None, create=True),
    ):
        if not patched:
            del dsa.packed_indexer_loss
        before = [getattr(dsa, name, None) for name in names]
        assert layer("query", "key", packed_seq_params=record) == "done"
        assert [getattr(dsa, name, None) for name in names] == before
        if not patched:
            dsa.packed_indexer_loss = None  # for the mock to take away
    return found[0]


def test_upstreams_loss_stays_unless_kernels_are_asked_for(megatron):
    pytest.importorskip("triton")
    assert megatron.call(replaced, "stream", True) == ["FusedDSAIndexerLoss", "replaced.<locals>.<lambda>"]
    assert megatron.call(replaced, "triton", True) == ["ours", "KernelLoss.packed"]
    assert megatron.call(replaced, "triton", False) == ["ours", "ours"]


def handed_on():
    """What ``packed`` gives ``apply``."""
    from model.layers.attention.divergence import KernelLoss

    class Loss(KernelLoss):
        def apply(self, *given):
            return given

    return Loss(32).packed(*ARGUMENTS)


def test_the_loss_of_packed_documents_is_by_the_same_kernels(megatron):
    pytest.importorskip("triton")
    given = (
        "q",
        "w",
        "k",
        "query",
        "key",
        0.5,
        3,
        1.0,
        None,
        True,
        "groups",
        "starts",
        "ends",
        None,
        None,
        False,
        True,
    )
    assert megatron.call(handed_on) == given
