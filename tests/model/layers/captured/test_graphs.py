"""What a captured layer is given, and that it never reads the GPU; capture itself needs one (``test_gpu_graphs``)."""

import pytest
import torch

from model.layers.captured import graphs

ROW = 64
CUTS = [0, 1, 40, 64, 64, 100, 128, 128, 128]  # of two rows, padded


def bounds():
    return torch.tensor(CUTS, dtype=torch.int32)


def test_offsets_give_the_bounds_back():
    offsets = graphs.offsets(bounds(), ROW, 128)
    assert offsets.dtype == torch.int32
    assert graphs.bounds(offsets, ROW, 128).tolist() == CUTS


def test_zeros_mean_whole_rows():
    """Megatron captures with zeros."""
    zeros = torch.zeros(9, dtype=torch.int32)
    assert graphs.bounds(zeros, ROW, 128).tolist() == [0, 64, 128, 128, 128, 128, 128, 128, 128]


def test_paused_nests_and_ends_with_its_block():
    assert graphs.active()
    with graphs.paused(), pytest.raises(KeyError), graphs.paused(False):
        assert not graphs.active()
        raise KeyError
    assert graphs.active()


def test_no_graph_gathers_over_ranks():
    """Routers count tokens over expert parallel ranks."""
    assert graphs.settings(False, 2) == {}
    assert "moe_router" in graphs.settings(True, 1)["cuda_graph_modules"]
    assert graphs.settings(True, 2)["cuda_graph_modules"] == ["attn", "mamba"]


def differences(kinds):
    """{kind: (largest difference of the output called with ``offsets``, operators that make the host wait)}."""
    from unittest import mock

    import tiny
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    from model.layers.common import documents, packed
    from model.layers.mamba3 import mixer

    copies = ("new_tensor", "tensor", "as_tensor", "cpu", "numpy", "tolist")  # to or from a GPU, where there is one
    waits = ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "repeat_interleave", "bincount", "unique")

    class Waits(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = func.overloadpacket.__name__
            if name in waits:
                seen.append(name)
            return func(*args, **(kwargs or {}))

    class Copies(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if getattr(func, "__name__", "") in copies:
                seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    results, row = {}, 128
    model = tiny.fresh(row=row, paths={"mamba3": "torch_rows"})  # the rows that a GPU takes
    cuts = torch.tensor([0, 3, 100, 128, 128, 200, 256, 256], dtype=torch.int32)
    hidden = torch.randn(256, 1, model.config.hidden_size)
    for layer, kind in zip(model.decoder.layers, model.config.model_size.layers, strict=True):
        if kind.kind not in kinds or kind.kind in results:
            continue
        plain = layer(hidden_states=hidden, attention_mask=None, packed_seq_params=packed.packed(cuts, row + 1))
        seen = []
        with (
            Copies(),
            Waits(),
            mock.patch.object(documents, "check"),  # both read the bounds, but only where they are on a CPU
            mock.patch.object(mixer, "_check_bounds"),
        ):
            other = layer.forward(hidden_states=hidden, offsets=graphs.offsets(cuts, row, 256))
            one = other[0] if isinstance(other, tuple) else other
            one.sum().backward()
        plain = plain[0] if isinstance(plain, tuple) else plain
        results[kind.kind] = ((plain - one).abs().max().item(), seen)
    return results


def test_a_captured_layer_computes_the_same_and_never_waits(megatron):
    """What M²RNN runs on a CPU in its kernels' place does read, so that its waits say nothing here."""
    results = megatron.call(differences, ("mla", "mamba3", "m2rnn"))
    assert results.pop("m2rnn")[0] == 0.0
    assert results == dict.fromkeys(("mla", "mamba3"), (0.0, []))
