"""Queries, keys and values of the model's dense MLA: joined by Megatron, and written whole by pack 54."""

import functools
from unittest import mock

import torch

# bounds, and the longest that is told
DOCUMENTS = {"several": ((0, 7, 7, 8, 25, 37), 20), "no longer": ((0, 5, 37), 40)}
WIDTHS = {"alike": {}, "apart": {"qk_nope_dim": 8, "v_dim": 32, "kv_lora_rank": 24}}
# none but what is looked at by the interpreter
UNTOUCHED = {"m2rnn": "torch"}


def joined():
    """A ``with`` block in which Megatron joins as before the pack."""
    from megatron.core.transformer import multi_latent_attention

    return mock.patch.object(multi_latent_attention, "can_fuse_mla_rope_qkv", None)


def patched():
    """Whether the tree has the pack."""
    from megatron.core.transformer import multi_latent_attention

    return hasattr(multi_latent_attention, "can_fuse_mla_rope_qkv")


def joins(outs):
    """How many nodes of the graph behind ``outs`` join tensors, forward or back."""
    seen, todo = set(), [out.grad_fn for out in outs]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [other for other, _ in node.next_functions]
    return sum(type(node).__name__ in ("CatBackward0", "SplitWithSizesBackward0") for node in seen)


def model(size, **run):
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    from model.kinds import catalogue
    from model.kinds.run import Run
    from model.step.network import Nam56r

    torch.manual_seed(0)
    model_parallel_cuda_manual_seed(0, force_reset_rng=True)
    wanted = Run(**run)
    return Nam56r(size, wanted, catalogue.choose(size, wanted))


def dense(made):
    from megatron.core.transformer.multi_latent_attention import MLASelfAttention

    return next(one for one in made.modules() if isinstance(one, MLASelfAttention))


def found(layer, hidden, packed):
    """Outputs, gradients of hidden states, of all weights and of all projections' outputs; and how many were joined."""
    leaf, taken = hidden.detach().requires_grad_(), {}
    layer.zero_grad()

    def told(name, module, inputs, out):
        out[0].register_hook(lambda grad: taken.__setitem__(name, grad.clone()))

    names = ("linear_q_up_proj", "linear_kv_up_proj", "linear_kv_down_proj")
    hooks = [getattr(layer, name).register_forward_hook(functools.partial(told, name)) for name in names]
    outs = layer.get_query_key_value_tensors(leaf, None, packed_seq_params=packed)[:3]
    count = joins(outs)
    draw = torch.Generator().manual_seed(1)
    torch.autograd.backward(outs, [torch.randn(out.shape, generator=draw).to(out) for out in outs])
    for hook in hooks:
        hook.remove()
    weights = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    return {**{str(at): out for at, out in enumerate(outs)}, "hidden": leaf.grad, **taken, **weights}, count


def case(size, dtype, documents, device, **run):
    """[tensors that differ, joins without the pack, joins with it, tensors compared]; None where the tree lacks it."""
    from model.layers.common.packed import packed

    if not patched():
        return None
    cuts, longest = DOCUMENTS[documents] if isinstance(documents, str) else documents
    bounds = torch.tensor(cuts, dtype=torch.int32, device=device)
    made = model(size, **run).to(device)
    draw = torch.Generator().manual_seed(2)
    for p in made.parameters():
        if p.dim() == 2:
            p.data = torch.randn(p.shape, generator=draw).to(p) * p.shape[1] ** -0.5
    layer = dense(made.to(dtype))
    hidden = torch.randn(cuts[-1], 1, size.hidden, generator=draw).to(device, dtype)
    with joined():
        theirs, before = found(layer, hidden, packed(bounds, longest))
    ours, after = found(layer, hidden, packed(bounds, longest))
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    assert all(ours[what].dtype == theirs[what].dtype for what in ours)
    return [sum(not torch.equal(ours[what], theirs[what]) for what in ours), before, after, len(ours)]
