# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging", "hypothesis"]
# ///
"""Upcycling a dense model to a mixture of experts fails where the model has several chunks, as under virtual pipelines.

``upcycle_state_dict`` takes lists of chunks. For one it converts ``(moe_model[0], dense_model[0])``; for several it
hands the conversion a dense state dict in place of the MoE model and the MoE model in place of the dense one, so that
the first look for a module ends in an AttributeError.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from reproducers import probe


def minimal() -> None:
    """Chunks without a layer: one is refused for want of experts, and so should two be."""
    import torch
    from megatron.core.transformer.moe.upcycling_utils import upcycle_state_dict

    for chunks in (1, 2):
        dense, moe = ([torch.nn.Linear(2, 2) for _ in range(chunks)] for _ in range(2))
        try:
            upcycle_state_dict(moe, dense)
        except AssertionError as error:
            print(chunks, "refused:", str(error)[:60])


FILE = "megatron/core/transformer/moe/upcycling_utils.py"
BUG = probe.Signature("AttributeError", "object has no attribute 'named_modules'", FILE)
HIDDEN, DENSE, EXPERTS = 8, 16, 4
# the weights' scale rounds in fp32 as does the product: 1e-7 of each
LIMIT = 1e-6


class Layer(nn.Module):
    """A layer of Megatron's MLP or MoE layer, beside a norm that both kinds of model have."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(HIDDEN), mlp


class Chunk(nn.Module):
    """Some layers of a model."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)


class Models:
    """Dense chunks and MoE chunks of one configuration: experts are ``granularity`` times narrower than the MLP."""

    def __init__(self, p: probe.Probe, granularity: int = 1, gated: bool = False, bias: bool = False) -> None:
        config = p.upstream("megatron.core.transformer").TransformerConfig
        self.specs = p.upstream("megatron.core.models.gpt.moe_module_specs")
        self.p, self.granularity, self.gated = p, granularity, gated
        common = {
            "num_layers": 2,
            "hidden_size": HIDDEN,
            "num_attention_heads": 1,
            "ffn_hidden_size": DENSE,
            "gated_linear_unit": gated,
            "add_bias_linear": bias,
            "activation_func": torch.nn.functional.silu if gated else torch.nn.functional.gelu,
            "use_cpu_initialization": True,
        }
        self.dense = config(**common)
        self.moe = config(
            **common,
            num_moe_experts=EXPERTS,
            moe_router_topk=2,
            moe_ffn_hidden_size=DENSE // granularity,
            moe_token_dispatcher_type="allgather",
        )

    def chunks(self, layers: tuple[int, ...], seed: int) -> tuple[list[nn.Module], list[nn.Module]]:
        """MoE chunks and dense ones, of so many layers each; every value is its own."""
        torch.manual_seed(seed)
        moe, dense = [Chunk([Layer(self.expert(at)) for at in range(count)]) for count in layers], list[nn.Module]()
        dense += [Chunk([Layer(self.mlp()) for _ in range(count)]) for count in layers]
        for chunk in (*moe, *dense):
            for value in chunk.parameters():
                value.data.normal_()
        return list(moe), dense

    def mlp(self) -> nn.Module:
        layers = self.p.upstream("megatron.core.tensor_parallel.layers")
        mlp = self.p.upstream("megatron.core.transformer.mlp")
        parts = mlp.MLPSubmodules(linear_fc1=layers.ColumnParallelLinear, linear_fc2=layers.RowParallelLinear)
        groups = self.p.upstream("megatron.core.parallel_state")
        made: nn.Module = mlp.MLP(self.dense, parts, tp_group=groups.get_tensor_model_parallel_group())
        return made

    def expert(self, number: int) -> nn.Module:
        build = self.specs.get_moe_module_spec(use_te=False, num_experts=EXPERTS, moe_grouped_gemm=False)
        groups = self.p.upstream("megatron.core.process_groups_config").ProcessGroupCollection
        made: nn.Module = build(
            config=self.moe, layer_number=number + 1, pg_collection=groups.use_mpu_process_groups(), is_mtp_layer=False
        )
        return made

    def want(self, moe: nn.Module, dense: nn.Module) -> dict[str, Tensor]:
        """The state of one upcycled chunk in fp64: each expert is a part of the MLP, scaled."""
        found = {name: value.double() for name, value in moe.state_dict().items() if isinstance(value, Tensor)}
        parts, scale = self.granularity, float(self.granularity)
        scale **= 1 / 3 if self.gated else 1 / 2
        for name, value in dense.state_dict().items():
            if not isinstance(value, Tensor):
                continue
            if ".mlp." not in name:
                found[name] = value.double()
                continue
            before, _, after = name.partition(".mlp.")
            layer, kind = after.rsplit(".", 1)
            for expert in range(EXPERTS):
                at, whole = expert % parts, value.double()
                if layer == "linear_fc1":
                    halves = whole.chunk(2) if self.gated else (whole,)
                    whole = torch.cat([half.chunk(parts)[at] for half in halves]) * scale
                elif kind == "weight":
                    whole = whole.chunk(parts, 1)[at] * scale
                found[f"{before}.mlp.experts.local_experts.{expert}.{layer}.{kind}"] = whole
        for name in [name for name in found if name.endswith("router.weight")]:
            found[name] = torch.cat([found[name].tensor_split(parts)[0].repeat_interleave(parts, 0)])
        return found


def apart(got: dict[str, Any], want: dict[str, Tensor]) -> float:
    """The largest difference of values; inf where names or shapes differ."""
    tensors = {name: value for name, value in got.items() if isinstance(value, Tensor)}
    if set(tensors) != set(want) or any(tensors[name].shape != want[name].shape for name in want):
        return float("inf")
    return max(float((tensors[name].double() - want[name]).abs().max()) for name in want)


def copies(chunks: list[nn.Module]) -> list[dict[str, Any]]:
    return [copy.deepcopy(chunk.state_dict()) for chunk in chunks]


def changed(chunks: list[nn.Module], before: list[dict[str, Any]]) -> int:
    """Tensors of ``chunks`` that are no longer what they were."""
    wrong = 0
    for chunk, one in zip(chunks, before, strict=True):
        for name, value in chunk.state_dict().items():
            wrong += isinstance(value, Tensor) and not torch.equal(value, one[name])
    return wrong


def converted(p: probe.Probe, models: Models, layers: tuple[int, ...], kind: type) -> float:
    """The largest error of any chunk's converted state, inf where an input has changed or memory is shared."""
    moe, dense = models.chunks(layers, p.seed)
    before = copies(moe), copies(dense)
    made = p.upstream("megatron.core.transformer.moe.upcycling_utils").upcycle_state_dict(kind(moe), kind(dense))
    names = ["model"] if len(layers) == 1 else [f"model{at}" for at in range(len(layers))]
    if list(made) != names or changed(moe, before[0]) or changed(dense, before[1]):
        return float("inf")
    worst = max(
        apart(made[name], models.want(*pair)) for name, pair in zip(names, zip(moe, dense, strict=True), strict=True)
    )
    for state in made.values():
        for value in state.values():
            if isinstance(value, Tensor):
                value.zero_()  # what is given out is the caller's
    return float("inf") if changed(moe, before[0]) or changed(dense, before[1]) else worst


def loaded(p: probe.Probe, models: Models, layers: tuple[int, ...]) -> float:
    """The same by ``load_and_upcycle_model``, of whose checkpoint the dense chunks come."""
    moe, dense = models.chunks(layers, p.seed + 1)
    wants, calls = [models.want(*pair) for pair in zip(moe, dense, strict=True)], list[Any]()

    def load(*args: Any, **kwargs: Any) -> tuple[int, int]:
        calls.append((args, kwargs))
        return 7, 11

    load_model = p.upstream("megatron.core.transformer.moe.upcycling_utils").load_and_upcycle_model
    said = load_model(load, moe, dense, load_args=(1,), load_kwargs={"two": 2})
    if said != (7, 11) or calls != [((1,), {"two": 2})]:
        return float("inf")
    return max(apart(chunk.state_dict(), want) for chunk, want in zip(moe, wants, strict=True))


KINDS: dict[str, dict[str, Any]] = {
    "narrower experts": {"granularity": 2},
    "gated, four parts": {"granularity": 4, "gated": True},
    "with biases": {"bias": True},
}
SIZES: dict[str, tuple[int, ...]] = {"two chunks": (1, 1), "three chunks of unlike length": (2, 1, 1)}


def check_several(p: probe.Probe) -> None:
    for kind, options in KINDS.items():
        models = Models(p, **options)
        for size, layers in SIZES.items():
            for form, call in (
                ("a list", partial(converted, p, models, layers, list)),
                ("loaded", partial(loaded, p, models, layers)),
            ):
                worst = p.attempt(f"{kind}: {size}: {form}", call, BUG)
                if worst is not None:
                    p.guard(f"{kind}: {size}: {form}: values", worst, LIMIT, reference="the formulas in fp64")

    worst = p.attempt("a tuple of chunks", partial(converted, p, Models(p), (1, 1), tuple), BUG)
    if worst is not None:
        p.guard("a tuple of chunks: values", worst, LIMIT, reference="the formulas in fp64")


def check_neighbours(p: probe.Probe) -> None:
    """One chunk, and what is refused."""
    for kind, options in KINDS.items():
        models = Models(p, **options)
        for name, call in (
            ("converted", partial(converted, p, models, (2,), list)),
            ("loaded", partial(loaded, p, models, (2,))),
        ):
            p.guard(f"{kind}: one chunk: {name}", measured(call), LIMIT, reference="the formulas in fp64")
    moe, dense = Models(p).chunks((1, 1, 1), p.seed)
    convert = p.upstream("megatron.core.transformer.moe.upcycling_utils").upcycle_state_dict
    pairs = ((moe[:2], dense), (moe, dense[:2]), (moe[:1], dense), (moe, dense[:1]))
    taken = sum(not refused(partial(convert, *pair)) for pair in pairs)
    p.guard("numbers of chunks that differ: taken", taken, 0, reference="AssertionError")


def refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Exception as error:
        return isinstance(error, AssertionError)
    return False


def measured(call: Callable[[], float]) -> float:
    """The value of ``call``, or inf where it raises."""
    try:
        return call()
    except Exception:
        return float("inf")


def reproduce(p: probe.Probe) -> None:
    p.megatron_cpu()
    check_neighbours(p)
    check_several(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=67, package="megatron", minimal=minimal)
