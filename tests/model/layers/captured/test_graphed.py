"""Captured layers keep what their backward pass reads, by Megatron's own code of which memory a graph gives away.

A CPU has no graphs. Layers run plainly instead, once as Megatron records and once as it captures them, and memory that
it would give to other graphs is overwritten before the backward pass.
"""

import pytest

pytestmark = pytest.mark.upstream


def gradients(kind):
    """Of a captured layer: (gradients, those that differ from an untouched layer's)."""
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
    layer.config.nam56r_row = len(taken)
    offsets = graphs.offsets(tiny.bounds(), len(taken), len(taken))
    if kind == "ExpertsLayer":
        layer.use_partial_cudagraphs = True

    def run(given):
        """The tensors that the captured part gives back."""
        router = kind == "ExpertsLayer"
        made = layer._forward_mlp_router(given) if router else layer.forward(hidden_states=given, offsets=offsets)
        return [out for out in (made if isinstance(made, tuple) else [made]) if torch.is_tensor(out)]

    def grads(outs, given):
        outs = [out for out in outs if out.requires_grad]
        wanted = [given, *layer.parameters()]
        return torch.autograd.grad(outs, wanted, [torch.ones_like(out) for out in outs], allow_unused=True)

    def overwritten(x):
        return torch.full_like(x, torch.nan) if x.is_floating_point() else x.bitwise_not()

    given_away = mock.patch.object(cuda_graphs, "make_weak_ref", overwritten, create=True)
    plain = tiny.hidden()
    want = grads(run(plain), plain)
    record._enable_saved_tensors_observer()
    try:
        recorded = tiny.hidden()
        made = run(recorded)
        cuda_graphs._apply_cudagraph_buffer_metadata(recorded).is_cudagraph_input = True
        for out in made:
            cuda_graphs._apply_cudagraph_buffer_metadata(out, is_output=True)
        outs = run(taken)
    finally:
        record._disable_saved_tensors_observer()
    # of a router's outputs the graph after the experts takes the residual and what the shared expert made
    inside = {0, 3} if kind == "ExpertsLayer" else {0}
    for at, (out, was) in enumerate([*zip(outs, made, strict=True), (taken, recorded)]):
        out.is_from_global_mempool, out.cg_buffer_metadata = True, copy.deepcopy(was.cg_buffer_metadata)
        out.cg_buffer_metadata.is_cudagraph_input = at in inside or out is taken
    inputs = {"fwd_graph_input_surface": (taken,), "fwd_graph_input_args": (taken,), "fwd_graph_input_kwargs": {}}
    runner = SimpleNamespace(**inputs, fwd_graph_outputs=tuple(outs), fwd_graph_output_surface=tuple(outs))
    with mock.patch.object(cuda_graphs, "HAVE_TE_GRAPHS", True), given_away:
        cuda_graphs._CudaGraphRunner._weakref_forward_buffers(runner, preserve_forward_to_backward_lifetimes=True)
    found = grads(outs, taken)
    pairs = [(got, wanted) for got, wanted in zip(found, want, strict=True) if wanted is not None]
    return len(pairs), sum(not torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("kind", ["Mamba3Layer", "M2rnnLayer", "AttentionLayer", "ExpertsLayer"])
def test_the_backward_pass_reads_what_the_forward_saved(megatron, kind):
    count, wrong = megatron.call(gradients, kind)
    assert count > 2
    assert wrong == 0
