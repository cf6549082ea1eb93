"""Captured layers keep what their backward pass reads, by Megatron's own code of which memory a graph gives away.

A CPU has no graphs. Layers run plainly instead, once as Megatron records and once as it captures them, and memory that
it would give to other graphs is NaN afterwards.
"""

import pytest

pytestmark = pytest.mark.upstream


def gradients(kind):
    """Of a captured layer: whether each gradient, its input's first and then its weights', is finite."""
    import copy
    from types import SimpleNamespace
    from unittest import mock

    import tiny
    import torch
    from megatron.core.transformer import cuda_graphs

    from model.layers.captured import graphs

    model = tiny.fresh()
    layer = next(each for each in model.decoder.layers if type(each).__name__ == kind)
    taken, record = tiny.hidden(), cuda_graphs._CudagraphGlobalRecord
    taken.is_from_global_mempool = True
    layer.config.nam56r_row = len(taken)
    offsets = graphs.offsets(tiny.bounds(), len(taken), len(taken))

    def run(given):
        if kind == "ExpertsLayer":
            layer.use_partial_cudagraphs = True
            made = layer._forward_mlp_router(given)
        else:
            made = layer.forward(hidden_states=given, offsets=offsets)
        return [out for out in (made if isinstance(made, tuple) else [made]) if out is not None and out.requires_grad]

    overwritten = mock.patch.object(cuda_graphs, "make_weak_ref", lambda x: torch.full_like(x, torch.nan), create=True)
    with mock.patch.object(cuda_graphs, "HAVE_TE_GRAPHS", True), overwritten:
        record._enable_saved_tensors_observer()
        try:
            recorded = tiny.hidden()
            run(recorded)
            taken.cg_buffer_metadata = copy.deepcopy(cuda_graphs._apply_cudagraph_buffer_metadata(recorded))
            outs = run(taken)
        finally:
            record._disable_saved_tensors_observer()
        inputs = {"fwd_graph_input_surface": (taken,), "fwd_graph_input_args": (taken,), "fwd_graph_input_kwargs": {}}
        runner = SimpleNamespace(**inputs, fwd_graph_outputs=(), fwd_graph_output_surface=())
        cuda_graphs._CudaGraphRunner._weakref_forward_buffers(runner, preserve_forward_to_backward_lifetimes=True)
    found = torch.autograd.grad([out.sum() for out in outs], [taken, *layer.parameters()], allow_unused=True)
    return [bool(grad.isfinite().all()) for grad in found if grad is not None]


@pytest.mark.parametrize("kind", ["Mamba3Layer", "M2rnnLayer", "AttentionLayer", "ExpertsLayer"])
def test_the_backward_pass_reads_the_layers_input_as_it_was(megatron, kind):
    finite = megatron.call(gradients, kind)
    assert len(finite) > 2
    assert all(finite)
