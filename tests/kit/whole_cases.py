"""Queries, keys and values of attention layers, joined by Megatron and written whole, on the same inputs."""

import functools

import torch

# Where the longest might be the whole stream, Megatron counts places in the stream: scores are the same, what turns is
# not, and whole layers are compared.
DOCUMENTS = {
    "several": ((0, 7, 7, 8, 25, 37), 20),
    "no longer": ((0, 5, 37), 40),
}  # bounds, and the longest that is told
WIDTHS = {"alike": {}, "apart": {"qk_nope_dim": 8, "v_dim": 32, "kv_lora_rank": 24}}
# none but what is looked at by the interpreter
UNTOUCHED = {"m2rnn": "torch", "balance": "megatron", "qkv": "joined"}


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


def parts(made):
    """{what: a layer, and what gives its tensors from hidden states and the record of documents}: dense MLA."""
    from megatron.core.transformer.multi_latent_attention import MLASelfAttention

    dense = next(one for one in made.modules() if isinstance(one, MLASelfAttention))

    def tensors(layer, hidden, packed):
        return layer.get_query_key_value_tensors(hidden, None, packed_seq_params=packed)[:3]

    def attended(layer, hidden, packed):
        return layer(hidden, None, packed_seq_params=packed)[:1]

    return {
        "dense": (dense, functools.partial(tensors, dense)),
        "dense layer": (dense, functools.partial(attended, dense)),
    }


def found(layer, function, hidden, packed):
    """Outputs, gradients of hidden states, of all weights and of all projections' outputs; and how many were joined."""
    leaf, outputs, taken = hidden.detach().requires_grad_(), {}, {}
    layer.zero_grad()

    def told(name, module, inputs, out):
        out[0].register_hook(lambda grad: taken.__setitem__(name, grad.clone()))  # what follows may turn it in place

    names = ("linear_q_up_proj", "linear_kv_up_proj", "linear_kv_down_proj")
    hooks = [getattr(layer, name).register_forward_hook(functools.partial(told, name)) for name in names]
    outs = function(leaf, packed)
    count = joins(outs)
    draw = torch.Generator().manual_seed(1)
    torch.autograd.backward(outs, [torch.randn(out.shape, generator=draw).to(out) for out in outs])
    for hook in hooks:
        hook.remove()
    weights = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    outputs = {str(at): out for at, out in enumerate(outs)}
    return {**outputs, "hidden": leaf.grad, **taken, **weights}, count


def case(size, dtype, documents, device, **run):
    """{part: [largest relative error of all tensors, joins of Megatron's, of ours, tensors compared]}."""
    import tiny

    from model.layers.attention import whole
    from model.layers.common.packed import packed

    cuts, longest = DOCUMENTS[documents] if isinstance(documents, str) else documents
    bounds = torch.tensor(cuts, dtype=torch.int32, device=device)
    made = model(size, **run).to(device)
    draw = torch.Generator().manual_seed(2)
    for p in made.parameters():
        if p.dim() == 2:
            p.data = torch.randn(p.shape, generator=draw).to(p) * p.shape[1] ** -0.5
    made.to(dtype)
    hidden = torch.randn(cuts[-1], 1, size.hidden, generator=draw).to(device, dtype)
    names = [name for name in parts(made) if name.endswith("layer") == (documents == "no longer")]
    theirs = {name: found(*parts(made)[name], hidden, packed(bounds, longest)) for name in names}
    whole.enable(made)
    ours = {name: found(*parts(made)[name], hidden, packed(bounds, longest)) for name in names}
    result = {}
    for name in names:
        (mine, joined), (wanted, before) = ours[name], theirs[name]
        assert mine.keys() == wanted.keys(), mine.keys() ^ wanted.keys()
        assert all(mine[what].dtype == wanted[what].dtype for what in mine)
        errors = {what: tiny.error(mine[what].cpu(), wanted[what].cpu()) for what in mine}
        result[name] = [max(errors.values()), before, joined, len(errors)]
    return result
