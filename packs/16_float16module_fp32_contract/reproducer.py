# /// script
# requires-python = ">=3.12"
# dependencies = [
#     "megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy<2.4", "einops", "tilelang==0.1.8",
#     "apache-tvm-ffi==0.1.9", "hypothesis",
# ]
# ///
"""Float16Module casts parameters to bf16 that are kept in fp32 by contract: MambaMixer's ``A_log`` and ``D``.

``A = exp(A_log)`` is the decay rate of a state that lives for thousands of steps, so a rounding of ``A_log`` grows with
the sequence. Upstream writes "Keep A_log in fp32" where it creates the parameter, and the wrapper then rounds it with
everything else. Where another module can ask for fp32 too, by the tree's function ``mark_keep_in_fp32`` or by what the
tree's mixer does to ``A_log``, parameters that ask keep it, Mamba-3's for one. MIMO needs tilelang.

mamba-ssm comes as a checkout:
``git clone -b v2.3.2.post1 https://github.com/state-spaces/mamba``, then ``--needs mamba``.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
from torch import Tensor, nn

from reproducers import probe


def minimal() -> None:
    """Wraps a MambaMixer in Float16Module; needs mamba_ssm, and a GPU as it stands."""
    import torch
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
    from megatron.core.transformer import TransformerConfig, module

    torch.distributed.init_process_group(store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(0)
    config = TransformerConfig(num_layers=1, hidden_size=256, num_attention_heads=4, bf16=True)
    linear = tensor_parallel.ColumnParallelLinear, tensor_parallel.RowParallelLinear
    groups = ProcessGroupCollection.use_mpu_process_groups()
    mixer = MambaMixer(config, MambaMixerSubmodules(*linear), 256, pg_collection=groups)
    module.Float16Module(config, mixer)
    print("A_log:", mixer.A_log.dtype, "D:", mixer.D.dtype, "upstream's comment: keep in fp32")
    assert mixer.A_log.dtype == mixer.D.dtype == torch.float32


STEPS, DT = 4096, 2.0**-10  # a long document; about dt_min, MambaMixer's slowest heads, and exact in bf16
HIDDEN, HEADS, P, N = 64, 32, 64, 128  # model width, heads, head width, state width
MAMBA3 = ("dt_bias", "D", "B_bias", "C_bias", "mimo_x", "mimo_z", "mimo_o")  # fp32 whatever dtype Mamba3 is given
FP32 = 1e-6  # nothing may be lost; rounding once more to fp32 would lose 6e-8
LOSES = {torch.bfloat16: 1e-3, torch.float16: 1e-4}  # half precision loses up to 3.9e-3 and 4.9e-4 of a value


def relative(measured: Tensor, reference: Tensor) -> float:
    """Largest elementwise relative error; ``reference`` is fp64 without zeros. Of no elements only fp32 is right."""
    if not measured.numel():
        return 0.0 if measured.dtype == torch.float32 else float("inf")
    return ((measured.double() - reference) / reference).abs().max().item()


def config(p: probe.Probe, dtype: torch.dtype, heads: int = HEADS) -> Any:
    return p.upstream("megatron.core.transformer.transformer_config").TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=4,
        use_cpu_initialization=True,  # of the two projections
        gradient_accumulation_fusion=False,  # needs apex
        use_mamba_mem_eff_path=False,  # the other path needs causal_conv1d; both read A_log and D alike
        mamba_state_dim=N,
        mamba_head_dim=P,
        mamba_num_heads=heads,
        mamba_num_groups=2,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        fp16=dtype == torch.float16,
    )


def mixer(p: probe.Probe, cfg: Any, wide: bool = False) -> Any:
    """The real MambaMixer with Megatron's own linear layers; D as if trained: 1 rounds to itself.

    ``wide``: D has a value for each channel of a head.
    """
    mamba = p.upstream("megatron.core.ssm.mamba_mixer")
    if not mamba.HAVE_MAMBA_SSM:
        raise probe.CannotTest("mamba_ssm cannot be imported", "pass --needs DIR with its Python sources")
    layers = p.upstream("megatron.core.tensor_parallel.layers")
    groups = p.upstream("megatron.core.process_groups_config").ProcessGroupCollection.use_mpu_process_groups()
    projections = mamba.MambaMixerSubmodules(in_proj=layers.ColumnParallelLinear, out_proj=layers.RowParallelLinear)
    torch.manual_seed(p.seed)
    built = mamba.MambaMixer(cfg, projections, HIDDEN, layer_number=1, pg_collection=groups, D_has_hdim=wide)
    with torch.no_grad():
        built.D.add_(torch.randn(len(built.D)).to(built.D) / 8)
    return built.to(torch.cuda.current_device())


def wrap(p: probe.Probe, cfg: Any, module: nn.Module) -> nn.Module:
    return p.upstream("megatron.core.transformer.module").Float16Module(cfg, module)  # type: ignore[no-any-return]


class Keeper:
    """How a parameter asks for fp32 in this tree: by what its mixer does to A_log and D alone, or by its function.

    ``known``: whether there is a way that another module can go.
    """

    def __init__(self, p: probe.Probe) -> None:
        built = mixer(p, config(p, torch.bfloat16))
        usual = [vars(value) for key, value in built.named_parameters() if key not in ("A_log", "D")]
        mine, other = vars(built.A_log), vars(built.D)
        own = {key for key in mine.keys() & other.keys() if mine[key] == other[key]}
        self.marks = {key: mine[key] for key in own if not any(key in row and row[key] == mine[key] for row in usual)}
        self.kind = type(built.A_log) if type(built.A_log) is not nn.Parameter else None
        self.function = getattr(p.upstream("megatron.core.transformer.module"), "mark_keep_in_fp32", None)
        self.known = bool(self.marks or self.kind or self.function)

    def ask(self, value: nn.Parameter) -> None:
        if self.kind:
            value.__class__ = self.kind
        for key, mine in self.marks.items():
            setattr(value, key, mine)
        if self.function and not (self.marks or self.kind):
            self.function(value)

    def decline(self, value: nn.Parameter) -> None:
        """A mark that says no."""
        for key, mine in self.marks.items():
            if mine is True:
                setattr(value, key, False)


def check_cast(p: probe.Probe, dtype: torch.dtype) -> tuple[Any, Any, Tensor, Tensor]:
    """Wrap a mixer and say what A_log and D lost; all else is cast as ever. Returns wrapper, mixer, true A and D."""
    name, cfg = str(dtype).removeprefix("torch."), config(p, dtype)
    module = mixer(p, cfg)
    before = {key: value.detach().clone() for key, value in module.named_parameters()}
    attributes = [(key, sorted(vars(value))) for key, value in module.named_parameters()]
    names = set(module.state_dict())
    wrapped = wrap(p, cfg, module)
    A, D = before["A_log"].double().exp(), before["D"].double()  # [HEADS] each, of the fp32 values before the wrap
    after = module.A_log.detach().double().exp()
    p.error(
        f"A = exp(A_log) after the {name} wrap",
        relative(after, A),
        FP32,
        reference="fp64 exp of A_log before the wrap",
        bug_above=LOSES[dtype],
    )
    p.error(
        f"D after the {name} wrap", relative(module.D, D), FP32, reference="D before the wrap", bug_above=LOSES[dtype]
    )
    p.error(
        f"state left after {STEPS} steps, {name}",
        relative((-after * DT * STEPS).exp(), (-A * DT * STEPS).exp()),
        FP32 * 16 * DT * STEPS,  # an error of A is multiplied by A dt steps, A <= 16
        reference=f"fp64 exp(-A dt {STEPS}), dt {DT:.2g}",
        bug_above=1e-2,
    )
    others = {key: value for key, value in module.named_parameters() if key not in ("A_log", "D")}
    p.guard(
        f"other parameters not exactly cast to {name}",
        sum(not torch.equal(value, before[key].to(dtype)) for key, value in others.items()),
        0,
        reference=f"{', '.join(others)} before the wrap, .to({name})",
    )
    p.guard(f"state_dict names changed, {name}", len(set(wrapped.state_dict()) ^ names), 0, reference="before")
    p.guard(
        f"parameter attributes changed, {name}",
        sum(sorted(vars(module.get_parameter(key))) != mine for key, mine in attributes),
        0,
        reference="as constructed",
    )
    still = module.A_log.detach() + 1e-3 == module.A_log.detach()
    p.note(f"A_log entries that an update of 1e-3 leaves alone, {name}", f"{int(still.sum())} of {HEADS}")
    return wrapped, module, A, D


class Casting(nn.Linear):  # type: ignore[misc]
    """A layer that casts a tensor of its own, as nn.Module lets it."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.table = torch.ones(3)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.table = fn(self.table)
        return super()._apply(fn, recurse)


class Kind(Tensor):  # type: ignore[misc]
    """A kind of tensor of one's own, as that of a quantized or a distributed parameter is."""


def check_neighbours(p: probe.Probe) -> None:
    """Float buffers are cast, integer ones are not, shared parameters stay shared, layers are asked to cast.

    So are parameters of a subclass, without elements and on meta, each by itself; without a half precision it raises.
    """
    norm, own = nn.BatchNorm1d(8), Casting()
    tied = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8), norm, own])
    tied[1].weight = tied[0].weight
    wrap(p, config(p, torch.bfloat16), tied)
    wrong = [
        norm.running_mean.dtype != torch.bfloat16,
        norm.num_batches_tracked.dtype != torch.int64,
        tied[1].weight is not tied[0].weight,
        tied[0].weight.dtype != torch.bfloat16,
        own.table.dtype != torch.bfloat16,
    ]
    p.guard("buffers or shared parameters treated otherwise", sum(wrong), 0, reference="nn.Module.bfloat16")
    other = nn.ParameterList([nn.Parameter(torch.randn(3).as_subclass(Kind)), torch.ones(0), torch.ones(0, 2)])
    wrap(p, config(p, torch.bfloat16), other)
    meta = nn.ModuleList([nn.Linear(2, 3, device="meta"), nn.Linear(4, 5, device="meta")])
    wrap(p, config(p, torch.bfloat16), meta)
    shapes = [tuple(value.shape) for value in (*other.parameters(), *meta.parameters())]
    dtypes = {value.dtype for value in (*other.parameters(), *meta.parameters())}
    wrong = [
        shapes != [(3,), (0,), (0, 2), (3, 2), (3,), (5, 4), (5,)],
        dtypes != {torch.bfloat16},
        {value.device.type for value in meta.parameters()} != {"meta"},
        not isinstance(other[0].detach(), Kind),
    ]
    said = "parameters of a subclass, without elements or on meta treated otherwise"
    p.guard(said, sum(wrong), 0, reference="nn.Module.bfloat16")
    whole = nn.Linear(2, 2)
    try:
        wrap(p, config(p, torch.float32), whole)
        wrong = [True]
    except Exception:
        wrong = [whole.weight.dtype != torch.float32]
    p.guard("wrapped without fp16 or bf16", sum(wrong), 0, reference="an error, and nothing cast")


class Named(nn.Module):  # type: ignore[misc]
    """Parameters that are called as the mixer's are."""

    def __init__(self) -> None:
        super().__init__()
        self.A_log, self.D = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))


class Refusing(nn.Linear):  # type: ignore[misc]
    """A layer that cannot be cast."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        raise RuntimeError("no")


def check_direct(p: probe.Probe) -> None:
    """Casts without the wrapper, after one that failed as well; names alone; copies; marks of tensor parallelism."""
    cfg = config(p, torch.bfloat16)
    module = mixer(p, cfg)
    marks = [(value.tensor_model_parallel, value.partition_dim) for value in (module.A_log, module.D)]
    p.guard(
        "A_log and D that tensor parallelism does not know",
        sum(mark != (True, 0) for mark in marks),
        0,
        reference="set_tensor_model_parallel_attributes",
    )
    named = Named()
    wrapped = wrap(p, cfg, named)
    wrong = sum(value.dtype != torch.bfloat16 for value in named.parameters())
    p.guard("parameters of another module called A_log and D: not cast", wrong, 0, reference="nn.Module.bfloat16")
    p.guard_attempt("a deep copy of the wrapper", lambda: copy.deepcopy(wrapped))
    with contextlib.suppress(RuntimeError):
        wrap(p, cfg, nn.ModuleList([mixer(p, cfg), Refusing(2, 2)]))
    for name, cast in CASTS.items():
        module = cast(mixer(p, cfg))
        wrong = sum((value.dtype, value.device.type) != name for value in module.parameters())
        p.guard(f"parameters that a cast to {name[0]} on {name[1]} leaves", wrong, 0, reference="nn.Module.to")


CASTS: dict[tuple[torch.dtype, str], Any] = {
    (torch.float64, "meta"): lambda module: module.to("meta", torch.float64),
    (torch.bfloat16, "meta"): lambda module: module.to("meta").bfloat16(),
    (torch.float16, "meta"): lambda module: module.half().to("meta"),
}


def check_nested(p: probe.Probe) -> None:
    """A mixer of any number of heads and either form of D, however it is built, as deep in a model as layers are."""
    from hypothesis import strategies as st

    def measure(
        heads: int, wide: bool, depth: int, dtype: torch.dtype, grad: bool, training: bool, initialised: bool
    ) -> float:
        cfg = config(p, dtype, 2 * heads)
        cfg.perform_initialization = initialised
        with torch.set_grad_enabled(grad):
            module = model = mixer(p, cfg, wide).train(training)
            for value in (module.A_log, module.D) if not initialised else ():  # as a checkpoint is loaded
                value.data.copy_(torch.linspace(0.3, 2.1, value.numel()).view(value.shape))
        A, D = module.A_log.detach().double().exp(), module.D.detach().double()
        for _ in range(depth):
            model = nn.ModuleList([nn.Linear(2, 2), model])
        wrap(p, cfg, model)
        return max(relative(module.A_log.detach().double().exp(), A), relative(module.D, D))

    space = {
        "heads": st.integers(1, 20),
        "wide": st.booleans(),
        "depth": st.integers(0, 4),
        "dtype": st.sampled_from([torch.bfloat16, torch.float16]),
        "grad": st.booleans(),
        "training": st.booleans(),
        "initialised": st.booleans(),
    }
    p.drawn(
        "A and D of a mixer in a model, drawn",
        measure,
        FP32,
        space=space,
        count=8,
        reference="before the wrap",
        bug_above=LOSES[torch.float16],
    )


# kind, shape, dtype, mark (None: no attribute), how many modules lie above
Value = tuple[str, list[int], torch.dtype, bool | None, int]


def check_marks(p: probe.Probe, keeper: Keeper) -> None:
    """Parameters and buffers of any shape and dtype: parameters that ask keep fp32, all else is cast."""
    from hypothesis import strategies as st

    def wrapped(values: list[Value], dtype: torch.dtype) -> list[tuple[Tensor, Tensor, bool, bool]]:
        """(value before, after, whether it is marked, whether the object is the same) for each of them."""
        torch.manual_seed(p.seed)
        levels, made = [nn.Module()], list[tuple[nn.Module, str, Tensor, Tensor, bool]]()
        for _ in range(3):
            levels[-1].below = nn.Module()
            levels.append(levels[-1].below)
        for at, (kind, shape, given, flag, depth) in enumerate(values):
            tensor = (8 * torch.randn(shape)).to(torch.cuda.current_device(), given)
            value = (
                tensor if kind == "buffer" else nn.Parameter(tensor, kind == "parameter" and given.is_floating_point)
            )
            marked = keeper.known and flag is True and given == torch.float32 and kind != "buffer"
            if marked:
                keeper.ask(value)
            elif flag is False and kind != "buffer":
                keeper.decline(value)
            holder = levels[depth]
            (holder.register_buffer if kind == "buffer" else holder.register_parameter)(f"v{at}", value)
            made.append((holder, f"v{at}", value, tensor.clone(), marked))
        wrap(p, config(p, dtype), levels[0])
        after = [getattr(holder, name) for holder, name, *_ in made]
        return [
            (old, new.detach(), marked, new is value or not isinstance(value, nn.Parameter))
            for (_, _, value, old, marked), new in zip(made, after, strict=True)
        ]

    def lost(values: list[Value], dtype: torch.dtype) -> float:
        return max((relative(new, old.double()) for old, new, marked, _ in wrapped(values, dtype) if marked), default=0)

    def wrong(values: list[Value], dtype: torch.dtype) -> float:
        bad = 0
        for old, new, marked, same in wrapped(values, dtype):
            true = old.to(dtype) if old.is_floating_point() else old
            bad += not same or (not marked and (new.dtype != true.dtype or not torch.equal(new, true)))
        return bad

    value = st.tuples(
        st.sampled_from(["parameter", "frozen", "buffer"]),
        st.lists(st.integers(0, 40), max_size=3),
        st.sampled_from([torch.float32, torch.float32, torch.float64, torch.int64, torch.uint8, torch.complex64]),
        st.sampled_from([True, False, None]),
        st.integers(0, 3),
    )
    space = {
        "values": st.lists(value, min_size=1, max_size=8),
        "dtype": st.sampled_from([torch.bfloat16, torch.float16]),
    }
    asked = "parameters that ask as the mixer's do, drawn"
    if keeper.known:
        p.drawn(asked, lost, FP32, space=space, count=24, reference="before the wrap")
    else:
        p.skip(asked, "the mixer does nothing to its parameters that another module could do")
    p.drawn(
        "values without a mark that are not cast as ever, drawn",
        wrong,
        0,
        space=space,
        count=24,
        reference="before the wrap, Tensor.to",
    )


def scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """The SSD recurrence in closed form: y_t = sum_s<=t (C_t.B_s) exp(A (c_t - c_s)) dt_s x_s + D x_t, c = cumsum dt.

    x [b, l, h, p]; dt [b, l, h] after softplus; A (negative), D [h]; B, C [b, l, g, n] -> [b, l, h, p].
    """
    B, C = (t.repeat_interleave(x.shape[2] // t.shape[2], 2) for t in (B, C))  # [b, l, h, n]
    c = dt.cumsum(1).transpose(1, 2)  # [b, h, l]
    decay = (A[:, None, None] * (c[..., :, None] - c[..., None, :]).tril()).exp().tril()  # [b, h, t, s]
    return torch.einsum("bthn,bshn,bhts,bsh,bshp->bthp", C, B, decay, dt, x) + D[:, None] * x


def check_forward(p: probe.Probe, wrapped: Any, module: Any, A: Tensor, D: Tensor) -> None:
    """Forward and backward of the wrapped mixer, watching the scan that it calls."""
    mamba = p.upstream("megatron.core.ssm.mamba_mixer")
    kernel, calls = mamba.mamba_chunk_scan_combined, []

    def watched(x: Tensor, dt: Tensor, a: Tensor, B: Tensor, C: Tensor, chunk: int, **options: Any) -> Tensor:
        step = nn.functional.softplus(dt.double() + options["dt_bias"].double())
        x64, B64, C64, d = x.double(), B.double(), C.double(), options["D"]
        exact = scan(x64, step, a.double(), B64, C64, d.double())  # with the A and D that the mixer hands over
        y = kernel(x, dt, a, B, C, chunk, **options) if p.lane == "cuda" else exact.to(x.dtype)
        without = [scan(x64, step, rate, B64, C64, 0 * D) for rate in (a.double(), -A)]
        calls.append((x, y, exact, without, d))
        return y  # type: ignore[no-any-return]

    mamba.mamba_chunk_scan_combined = watched  # type: ignore[attr-defined]
    if p.lane == "cpu":  # mamba's own torch form of the gated norm, whose kernel needs a GPU
        gated, norm = p.upstream("mamba_ssm.ops.triton.layernorm_gated"), module.norm
        norm.forward = lambda y, z: gated.rms_norm_ref(
            y, norm.weight, None, z=z, eps=norm.eps, group_size=norm.group_size, norm_before_gate=norm.norm_before_gate
        )
    hidden = torch.randn(256, 2, HIDDEN, device=module.A_log.device)  # [l, b, d], fp32 as the wrapper's caller has it
    out = p.guard_attempt("forward of the wrapped mixer returns", lambda: wrapped(hidden)[0])
    if out is None:
        return
    x, y, exact, (state, truth), handed = calls[-1]
    p.error(
        "scan in the mixer's forward without its D term",
        ((state - truth).norm() / truth.norm()).item(),
        FP32,
        # 256 tokens, where a state has not yet lived long
        reference="fp64 scan with A before the wrap",
        bug_above=1e-4,
    )
    p.error(
        "D that the mixer's forward hands to the scan",
        relative(handed, D),
        FP32,
        reference="D before the wrap",
        bug_above=LOSES[torch.bfloat16],
    )
    p.guard(
        "scan output in bf16",
        ((y.double() - exact).norm() / exact.norm()).item(),
        2e-2,  # a few bf16 roundings
        reference="fp64 scan of the same arguments",
    )
    wrong = [x.dtype != torch.bfloat16, y.dtype != torch.bfloat16, out.dtype != torch.float32]
    p.guard("dtypes of activations and output changed", sum(wrong), 0, reference="bf16 inside, fp32 from the wrapper")
    p.guard_attempt("backward of the wrapped mixer returns", lambda: out.square().mean().backward())
    grads = [(value, value.grad) for value in module.parameters()]
    bad = sum(g is None or g.dtype != v.dtype or not g.isfinite().all().item() for v, g in grads)
    p.guard("gradients missing, not finite or not in their parameter's dtype", bad, 0, reference="none")


def check_optimizer(p: probe.Probe, wrapped: Any, dtype: torch.dtype, what: str = "") -> None:
    """DDP and the distributed optimizer, whose checkpoints find a main copy by its place in a group."""
    name = str(dtype).removeprefix("torch.") + what
    ddp, optim = p.upstream("megatron.core.distributed"), p.upstream("megatron.core.optimizer")
    options = ddp.DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    chunk = ddp.DistributedDataParallel(wrapped.config, options, wrapped)
    half = {"fp16": dtype == torch.float16, "bf16": dtype == torch.bfloat16, "params_dtype": dtype}
    settings = optim.OptimizerConfig(lr=1e-3, use_distributed_optimizer=True, loss_scale=1.0, **half)
    chained = p.guard_attempt(
        f"distributed optimizer is built, {name}", lambda: optim.get_megatron_optimizer(settings, [chunk])
    )
    if chained is None:
        return
    (inner,) = chained.chained_optimizers
    wrong = 0
    for value in wrapped.parameters():
        main = inner._get_main_param_and_optimizer_states(value)["param"]
        wrong += not torch.equal(main, value.detach().float().flatten())
    if what:  # upstream puts them out of place for any parameter in fp32
        p.error(
            f"main copies that belong to another parameter, {name}",
            wrong,
            0,
            bug_above=1,
            reference="each parameter in fp32",
        )
    else:
        p.guard(f"main copies that belong to another parameter, {name}", wrong, 0, reference="each parameter in fp32")


def check_decay_kernel(p: probe.Probe, module: Any, A: Tensor) -> None:
    """Mamba-2's Triton scan carries a state of ones over STEPS empty steps: exp(-A dt STEPS) is what must be left."""
    ssd = p.upstream("mamba_ssm.ops.triton.ssd_combined")
    half: Any = {"device": A.device, "dtype": torch.bfloat16}
    x, dt = torch.zeros(1, STEPS, HEADS, P, **half), torch.full((1, STEPS, HEADS), DT, **half)
    B = C = torch.zeros(1, STEPS, 2, N, **half)
    state = torch.ones(1, HEADS, P, N, device=A.device)
    a = -module.A_log.detach().float().exp()  # as MambaMixer computes it
    _, left = ssd.mamba_chunk_scan_combined(
        x, dt, a, B, C, 128, D=module.D.detach(), initial_states=state, return_final_states=True
    )  # left [1, HEADS, P, N], fp32
    truth = (-A * DT * STEPS).exp()[:, None, None].expand(HEADS, P, N)  # from 0.02 down to 1e-28
    p.error(
        f"state left after {STEPS} steps of the Triton scan",
        relative(left[0], truth),
        1e-3,
        # exponents up to 64 summed in fp32 over 32 chunks: about 64 x 2e-6
        reference="fp64 exp(-A dt steps), A before the wrap",
        bug_above=1e-2,
    )


def check_mamba3(p: probe.Probe, mimo: bool, keeper: Keeper) -> None:
    """A module that knows nothing of Megatron, whose parameters ask for fp32, wrapped by Float16Module."""
    kind = "MIMO" if mimo else "SISO"
    if not keeper.known:
        return p.skip(f"Mamba-3 {kind}", "the mixer does nothing to its parameters that another module could do")
    mamba3 = p.upstream("mamba_ssm.modules.mamba3")
    if mimo and mamba3.mamba3_mimo_combined is None:
        return p.skip(f"Mamba-3 {kind}", "tilelang cannot be imported, and Mamba3 asks for it when it is built")
    torch.manual_seed(p.seed)
    size = {"d_model": 256, "d_state": 128, "headdim": 64, "mimo_rank": 4, "chunk_size": 16 if mimo else 64}
    device = torch.cuda.current_device()
    module = mamba3.Mamba3(**size, is_mimo=mimo, device=device, dtype=torch.bfloat16)
    kept = {key: value for key, value in module.named_parameters() if key in MAMBA3}
    with torch.no_grad():  # as if trained: most are created as ones, which bf16 holds exactly
        for value in kept.values():
            value.mul_(1 + torch.randn_like(value) / 8)
    truth = {key: value.detach().double() for key, value in kept.items()}
    hidden = torch.randn(1, 256, 256, device=device, dtype=torch.bfloat16) / 4  # [b, l, d]
    expected = run_mamba3(p, kind, module, hidden)  # [b, l, d] or None
    for value in kept.values():
        keeper.ask(value)
    wrapped = wrap(p, config(p, torch.bfloat16), module)
    lost = max(relative(module.get_parameter(key), truth[key]) for key in kept)
    p.guard(f"Mamba-3 {kind} {', '.join(kept)}, marked", lost, FP32, reference="before the wrap")
    p.guard(
        f"Mamba-3 {kind} unmarked parameters not bf16",
        sum(v.dtype != torch.bfloat16 for k, v in module.named_parameters() if k not in kept),
        0,
        reference="all cast",
    )
    if expected is None:
        return None
    with torch.no_grad():
        out = p.guard_attempt(f"Mamba-3 {kind} kernel takes what the wrap left", lambda: wrapped(hidden))
    if out is not None:  # nothing changed, so only the order of additions inside the kernel may
        error = ((out.double() - expected).norm() / expected.norm()).item()
        p.guard(f"Mamba-3 {kind} output", error, 1e-4, reference="the same module before the wrap")
    return None


def run_mamba3(p: probe.Probe, kind: str, module: Any, hidden: Tensor) -> Tensor | None:
    """The module's output before the wrap, or None with the reason noted where this host cannot run its kernel."""
    if p.lane == "cpu":
        return p.skip(f"Mamba-3 {kind} kernel", "needs a GPU")
    try:
        with torch.no_grad():
            return module(hidden).double()  # type: ignore[no-any-return]
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return p.skip(f"Mamba-3 {kind} kernel", f"does not run before the wrap either: {said[:300]}")


def prepare(p: probe.Probe) -> None:
    """For ``minimal``, which starts Megatron by itself."""
    p.megatron_cpu()
    p.upstream("megatron.core.parallel_state").destroy_model_parallel()
    torch.distributed.destroy_process_group()
    p.namespace("mamba_ssm")


def reproduce(p: probe.Probe) -> None:
    p.megatron_cpu()
    p.namespace("mamba_ssm")  # its __init__ wants compiled extensions that nothing here uses
    bf16 = check_cast(p, torch.bfloat16)
    fp16 = check_cast(p, torch.float16)
    check_neighbours(p)
    check_direct(p)
    check_nested(p)
    keeper = Keeper(p)
    check_marks(p, keeper)
    check_forward(p, *bf16)
    if p.lane == "cuda":
        check_decay_kernel(p, bf16[1], bf16[2])
    check_optimizer(p, bf16[0], torch.bfloat16)
    check_optimizer(p, fp16[0], torch.float16)
    late = wrap(p, config(p, torch.bfloat16), nn.Sequential(nn.Linear(8, 24), nn.Linear(24, 8)))
    late.module[1].late = nn.Parameter(torch.randn(40))  # no mark tells that it is in fp32
    check_optimizer(p, late.to(torch.cuda.current_device()), torch.bfloat16, ", one added after the wrap")
    for mimo in (False, True):
        check_mamba3(p, mimo, keeper)


if __name__ == "__main__":
    probe.main(reproduce, pack=16, package="megatron", minimal=minimal, prepare=prepare)
