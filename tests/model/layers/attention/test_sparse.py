"""What the sparse layers put in the place of upstream's: the kernels' function where its output is kept; no loss."""

import pytest
import tiny

pytestmark = pytest.mark.upstream


def replaced(path):
    """What upstream's forward finds under its own names."""
    from unittest import mock

    from megatron.core.transformer.experimental_attention_variant import dsa
    from megatron.core.transformer.experimental_attention_variant.ops import tilelang_dsa

    from model.patched import seams

    found, own = [], dsa.FusedDSAIndexerLoss

    def forward(self, *args, **kwargs):
        found.append((tilelang_dsa.SparseMLA.__name__, dsa.FusedDSAIndexerLoss is own))
        return "done"

    layer = tiny.layer(5).self_attention.core_attention
    paths = {**layer.config.model_paths, "sparse": mock.Mock()}
    paths["sparse"].name = path
    with (
        mock.patch.object(layer.config, "model_paths", paths),
        mock.patch.object(dsa.DSAttention, "forward", forward),
        mock.patch.object(tilelang_dsa, "SparseMLA", type("Upstreams", (), {})),
        mock.patch.object(seams, "verify"),
    ):
        assert layer("query", "key", packed_seq_params=tiny.packed()) == "done"
        assert tilelang_dsa.SparseMLA.__name__ == "Upstreams"
    return found[0]


@pytest.mark.parametrize(("path", "name"), [("again", "Upstreams"), ("kept", "KeptSparseMLA")])
def test_the_output_is_kept_where_that_is_asked_for_and_the_loss_is_upstreams(megatron, path, name):
    pytest.importorskip("triton")
    assert megatron.call(replaced, path) == (name, True)
