# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging"]
# ///
"""Without Transformer Engine and Apex the distributed optimizer cannot resume: it handles AdamW's step count wrongly.

torch's AdamW counts steps in its state, one tensor a parameter. An optimizer that has taken no step has none, and is
refused before anything is loaded into it. While moments are loaded the count is taken for one of them: it is absent in
the fully reshardable format (KeyError) and out of date in the ``dp_reshardable`` one, which silently sets it back. And
all parameters are given one tensor, which every parameter's update advances.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from reproducers import probe


def minimal():
    """What ``dist_checkpointing`` asks of a new optimizer that is to resume; as it stands on a GPU."""
    import torch
    from megatron.core import distributed, optimizer, parallel_state
    from megatron.core.transformer import MegatronModule, TransformerConfig

    torch.distributed.init_process_group(store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    model = MegatronModule(TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1))
    model.a = torch.nn.Parameter(torch.ones(100, device="cuda"))
    zero = {"use_distributed_optimizer": True}
    options = distributed.DistributedDataParallelConfig(**zero)
    chunk = distributed.DistributedDataParallel(model.config, options, model)
    adam = optimizer.get_megatron_optimizer(optimizer.OptimizerConfig(lr=1e-3, **zero), [chunk])
    form = {"distrib_optim_sharding_type": "fully_reshardable"}
    adam.sharded_state_dict(model.sharded_state_dict(), is_loading=True, metadata=form)


FILE = "megatron/core/optimizer/distrib_optimizer.py"
NO_STATE = probe.Signature("AssertionError", "^$", FILE)  # no count in the state
NO_STEP = probe.Signature("KeyError", "^'step'$", FILE)  # no count among the moments
ONE_FILE = "one file"
FORMS = ("fully_reshardable", "dp_reshardable")
SAVED, AFTER = 3, 2  # updates before the checkpoint and after it
RATE, BETAS, EPS, DECAY = 2.0**-6, (0.9, 0.95), 1e-8, 0.1
# fp32 rounds a value of about 1 to 6e-8, some ten times an update; a count that is one too high moves it by 1e-3
FP32 = 2e-6
MOMENTS = ("param", "exp_avg", "exp_avg_sq")
Shapes = tuple[tuple[int, ...], ...]
SHAPES: Shapes = ((64, 3), (5,), (7, 3, 2), (1,))  # one element is as much as a count has


def drawn(seed: int) -> Shapes:
    generator = torch.Generator().manual_seed(seed)
    shapes = (tuple(torch.randint(1, 12, (2,), generator=generator).tolist()) for _ in range(4))
    return (*shapes, (1,))


class Training:
    """A model under the distributed optimizer with seeded gradients, and AdamW in fp64 beside it."""

    def __init__(
        self, p: probe.Probe, shapes: Shapes, dtype: torch.dtype, start: int, decay: float = DECAY, **more: Any
    ) -> None:
        transformer = p.upstream("megatron.core.transformer")
        ddp, optim = p.upstream("megatron.core.distributed"), p.upstream("megatron.core.optimizer")
        half = {"bf16": dtype == torch.bfloat16, "fp16": dtype == torch.float16, "params_dtype": dtype}
        config = transformer.TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, **half)
        self.decay = decay
        self.module, self.seed, self.updates = transformer.MegatronModule(config), p.seed, 0
        device, generator = torch.cuda.current_device(), torch.Generator().manual_seed(start)
        for at, shape in enumerate(shapes):
            value = torch.randn(shape, generator=generator).to(device, dtype)
            self.module.register_parameter(f"p{at}", nn.Parameter(value))
        options = ddp.DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
        self.chunk = ddp.DistributedDataParallel(config, options, self.module)
        settings = optim.OptimizerConfig(
            lr=RATE,
            min_lr=RATE,
            weight_decay=decay,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            adam_eps=EPS,
            clip_grad=0.0,
            use_distributed_optimizer=True,
            **half,
            **more,
        )
        self.chained = optim.get_megatron_optimizer(settings, [self.chunk])
        (self.adam,) = self.chained.chained_optimizers
        self.exact = {name: [value.detach().double(), 0.0, 0.0] for name, value in self.named.items()}

    @property
    def named(self) -> dict[str, Tensor]:
        return dict(self.module.named_parameters())

    def update(self, count: int) -> None:
        """``count`` updates, each with gradients that are its own, here and in fp64."""
        for _ in range(count):
            self.updates += 1
            generator = torch.Generator().manual_seed(1000 * self.seed + self.updates)
            for name, value in self.named.items():
                grad = torch.randn(value.shape, generator=generator).to(value.device)
                value.main_grad.copy_(grad)
                self._exact(name, grad.double())
            if not self.chained.step()[0]:
                raise probe.CannotTest("the optimizer took no step")

    def _exact(self, name: str, grad: Tensor) -> None:
        master, first, second = self.exact[name]
        first, second = (b * m + (1 - b) * g for b, m, g in zip(BETAS, (first, second), (grad, grad**2), strict=True))
        mean, square = first / (1 - BETAS[0] ** self.updates), second / (1 - BETAS[1] ** self.updates)
        master = master * (1 - RATE * self.decay) - RATE * mean / (square.sqrt() + EPS)
        self.exact[name] = [master, first, second]

    def states(self) -> dict[str, dict[str, Tensor]]:
        """Masters and AdamW's state by parameter, of this rank's part."""
        mine = {name: value for name, value in self.named.items() if value in self.adam.model_param_gbuf_map}
        return {name: self.adam._get_main_param_and_optimizer_states(value) for name, value in mine.items()}

    def counts(self) -> list[float]:
        """Updates that AdamW has counted, by parameter."""
        return [float(state["step"]) for state in self.states().values()]

    def stated(self) -> list[float]:
        """Updates that the state dict states, by parameter group."""
        return [float(group["step"]) for group in self.adam.state_dict()["optimizer"]["param_groups"]]

    def error(self) -> float:
        """Largest error of a master or a moment; masters and moments are about 1 or less."""
        worst = 0.0
        for name, state in self.states().items():
            owned = self.adam._get_model_param_range_map(self.named[name])["param"]
            for key, exact in zip(MOMENTS, self.exact[name], strict=True):
                part = exact.flatten()[owned.start : owned.end]
                if state[key].shape != part.shape or state[key].dtype != torch.float32:
                    return float("nan")
                worst = max(worst, float((state[key].double() - part).abs().max()))
        return worst

    def owned(self) -> list[tuple[bool, str, int]]:
        """Of each count and moment: whether it is a count, its device, and bytes of the memory that it keeps alive."""
        states = self.states().values()
        rows = [(key, held) for state in states for key, held in sorted(state.items()) if key != "param"]
        return [(key == "step", held.device.type, held.untyped_storage().nbytes()) for key, held in rows]

    def resumed(self, of: Training) -> None:
        """From here on compare with ``of``, whose state was loaded."""
        self.updates, self.exact = of.updates, {name: [*values] for name, values in of.exact.items()}

    def sharded(self, form: str, loading: bool) -> dict[str, Any]:
        model = self.module.sharded_state_dict()
        metadata = {"distrib_optim_sharding_type": form}
        optimizer = self.chained.sharded_state_dict(model, is_loading=loading, metadata=metadata)
        return {"model": model, "optimizer": optimizer}


def check_resumed(p: probe.Probe, name: str, old: Training, new: Training) -> None:
    """Counts, masters and moments right after loading and after more updates."""
    new.resumed(old)
    counts = new.counts()
    p.error(
        f"{name}: count of updates",
        max(abs(count - old.updates) for count in counts),
        0,
        reference="updates before the checkpoint",
        bug_above=1,
    )
    p.guard(f"{name}: masters and moments", new.error(), FP32, reference="AdamW in fp64")
    step = next(iter(new.states().values()))["step"]
    p.guard(
        f"{name}: count of another kind",
        step.dtype != torch.float32 or step.dim() != 0,
        0,
        reference="torch's own: fp32, one element",
    )
    p.guard(
        f"{name}: counts and moments on another device, or parts of other memory",
        sum(mine != theirs for mine, theirs in zip(new.owned(), old.owned(), strict=True)),
        0,
        reference="as in the run that was never interrupted",
    )
    new.update(1)
    advanced = [after - before for before, after in zip(counts, new.counts(), strict=True)]
    p.error(
        f"{name}: counted in the next update beyond 1",
        max(abs(by - 1) for by in advanced),
        0,
        reference="one update",
        bug_above=1,
    )
    new.update(AFTER - 1)
    stated = new.stated()
    p.error(
        f"{name}: count stated {AFTER} updates later",
        max(abs(count - new.updates) for count in stated) if stated else float("nan"),
        0,
        reference="updates",
        bug_above=1,
    )
    p.error(
        f"{name}: masters and moments {AFTER} updates later",
        new.error(),
        FP32,
        reference="AdamW in fp64, never interrupted",
        bug_above=1e-4,
    )


def check_new(p: probe.Probe) -> None:
    """State of an optimizer before its first step, by itself and as the template of what is to be loaded."""
    new = Training(p, SHAPES, torch.float32, p.seed)
    state = p.attempt("state of a new optimizer", new.adam.state_dict, NO_STATE)
    if state is not None:
        p.error("count that a new optimizer states", max(map(abs, new.stated())), 0, reference="0", bug_above=1)
    for form in FORMS:
        other = Training(p, SHAPES, torch.float32, p.seed)
        p.attempt(f"new optimizer as a template, {form}", partial(other.sharded, form, True), NO_STATE)


def load_flat(old: Training, new: Training) -> bool:
    """By the format of one file, without the file. All ranks call it."""
    common, gathered = old.adam.state_dict(), old.adam.get_parameter_state_dp_zero()
    new.adam.load_state_dict(common)
    new.adam.load_parameter_state_from_dp_zero(gathered)
    return True


def load_sharded(p: probe.Probe, form: str, folder: str, new: Training) -> bool:
    """From a distributed checkpoint."""
    loaded = p.upstream("megatron.core.dist_checkpointing").load(new.sharded(form, True), folder)
    new.module.load_state_dict(loaded["model"])
    new.chained.load_state_dict(loaded["optimizer"])
    return True


def check_load(p: probe.Probe, kind: str, form: str, shapes: Shapes, dtype: torch.dtype, **more: Any) -> None:
    """Train, save, load into another that is new or has taken an update, which says more where new ones are refused."""
    old = Training(p, shapes, dtype, p.seed, **more)
    old.update(SAVED)
    with tempfile.TemporaryDirectory() as folder:
        if form != ONE_FILE:
            p.upstream("megatron.core.dist_checkpointing").save(old.sharded(form, False), folder)
        for before in (0, 1):
            new = Training(p, shapes, dtype, p.seed + 1, **more)
            new.update(before)
            name = f"{kind}, {form}, {'after an update' if before else 'new'}"
            if form == ONE_FILE:
                load, signature = partial(load_flat, old, new), NO_STEP
            else:
                load, signature = partial(load_sharded, p, form, folder, new), NO_STEP if before else NO_STATE
            if p.attempt(f"{name}: is loaded", load, signature):
                check_resumed(p, name, old, new)


def check_common(p: probe.Probe, kind: str, shapes: Shapes, dtype: torch.dtype) -> None:
    """What is beside the moments, loaded back into where it came from, changes nothing."""
    training = Training(p, shapes, dtype, p.seed)
    training.update(SAVED)
    training.adam.load_state_dict(training.adam.state_dict())
    check_resumed(p, f"{kind}, its own state", training, training)


def check_templates(p: probe.Probe) -> None:
    """What is asked of an optimizer before a load: of one in training, whose load may fail, and of one in fp16."""
    training = Training(p, drawn(p.seed + 3), torch.bfloat16, p.seed)
    training.update(SAVED)
    for form in FORMS:
        if p.attempt(f"in training, asked for a template, {form}", partial(training.sharded, form, True), NO_STATE):
            p.guard(
                f"asked for a template, {form}: masters and moments", training.error(), FP32, reference="as they were"
            )
            worst = max(abs(count - SAVED) for count in training.counts())
            p.guard(f"asked for a template, {form}: count of updates", worst, 0, reference="as it was")
    new = Training(p, SHAPES, torch.float16, p.seed, initial_loss_scale=1.0)
    for form in FORMS:
        template = p.attempt(f"new optimizer in fp16 as a template, {form}", partial(new.sharded, form, True), NO_STATE)
        if template is not None:
            asks = "grad_scaler" in template["optimizer"]
            p.guard(f"fp16, {form}: loss scale that is not asked for", not asks, 0, reference="a checkpoint has it")


def check_ranks(p: probe.Probe) -> None:
    """Two data-parallel ranks; of a small model the second has no element."""

    def work(rank: int) -> None:
        p.megatron_cpu()
        small = Training(p, ((3,),), torch.float32, p.seed)
        small.update(SAVED)
        if rank:
            assert not small.states()
            p.attempt("rank 1 of 2, small model: state of no parameters", small.adam.state_dict, NO_STATE)
        else:
            p.guard(
                "rank 0 of 2, small model: count of updates", abs(small.counts()[0] - SAVED), 0, reference="updates"
            )
        shapes = (*drawn(p.seed + 7), (40, 9))  # the last lies on both ranks
        old, new = (Training(p, shapes, torch.bfloat16, p.seed + at) for at in range(2))
        old.update(SAVED)
        if p.attempt(f"rank {rank} of 2: is loaded", lambda: load_flat(old, new), NO_STEP):
            check_resumed(p, f"rank {rank} of 2", old, new)

    p.ranks(2, work)


def check_neighbours(p: probe.Probe) -> None:
    """Training that is not resumed, states that cannot be loaded, and counts of long training."""
    plain = Training(p, SHAPES, torch.float32, p.seed)
    plain.update(SAVED)
    p.guard(
        "never resumed: count of updates", max(abs(count - SAVED) for count in plain.counts()), 0, reference="updates"
    )
    p.guard("never resumed: masters and moments", plain.error(), FP32, reference="AdamW in fp64")
    common = plain.adam.state_dict()
    stated = common["optimizer"]["param_groups"]
    p.guard("never resumed: count in the state", max(abs(by - SAVED) for by in plain.stated()), 0, reference="updates")
    whole = next(iter(plain.states().values()))
    wrong = [is_taken(plain, {k: v for k, v in whole.items() if k != key}) != (not key) for key in ("", *MOMENTS)]
    p.guard("states without master or moment taken, or the whole refused", sum(wrong), 0, reference="none")
    next(iter(plain.states().values()))["step"].add_(1)
    p.guard("counts that disagree are taken", not raises(plain.adam.state_dict), 0, reference="refused")
    generator, worst, kinds = torch.Generator().manual_seed(p.seed), 0.0, set[Any]()
    for bits in range(24):  # fp32, in which torch counts, has each whole number of 24 bits
        count = int(torch.randint(2**bits, 2 ** (bits + 1), (), generator=generator)) | 1
        for group in stated:  # Transformer Engine's optimizer states whole numbers
            group["step"] = count if bits % 2 else float(count)
        plain.adam.load_state_dict(common)
        worst = max(worst, *(abs(held - count) for held in plain.counts()))
        whole = next(iter(plain.states().values()))["step"]
        kinds.add((whole.dtype, whole.dim()))
    p.guard("drawn counts of 1 to 24 bits: error of what is loaded", worst, 0, reference="updates")
    p.guard(
        "drawn counts: loaded as another kind",
        kinds != {(torch.float32, 0)},
        0,
        reference="torch's own: fp32, one element",
    )


def is_taken(training: Training, state: dict[str, Tensor]) -> bool:
    """Whether a master and its moments are loaded for the first parameter."""
    value = next(iter(training.named.values()))
    with torch.no_grad():
        return not raises(partial(training.adam._set_main_param_and_optimizer_states, value, state))


def raises(call: Callable[[], Any]) -> str:
    """Name of the exception that ``call`` raises, empty when none."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


def only_torch() -> None:
    """CannotTest where Megatron would take another Adam."""
    for package in ("transformer_engine", "apex"):
        if importlib.util.find_spec(package) is not None:
            said = f"{package} is installed, whose Adam Megatron takes"
            raise probe.CannotTest(said, "use an environment without it")


def prepare(p: probe.Probe) -> None:
    """For ``minimal``, which starts Megatron by itself."""
    only_torch()
    p.megatron_cpu()
    p.upstream("megatron.core.parallel_state").destroy_model_parallel()
    torch.distributed.destroy_process_group()


def reproduce(p: probe.Probe) -> None:
    only_torch()
    if p.lane == "cpu":
        check_ranks(p)
    else:
        p.skip("two ranks", "two GPUs; the cpu lane has them")
    p.megatron_cpu()
    check_new(p)
    # what loads the other two formats changes fp32 parameters in place outside of no_grad, which torch refuses
    cases = {"fp32": (SHAPES, torch.float32, FORMS[:1]), "bf16": (drawn(p.seed), torch.bfloat16, (ONE_FILE, *FORMS))}
    for kind, (shapes, dtype, forms) in cases.items():
        check_common(p, kind, shapes, dtype)
        for form in forms:
            check_load(p, kind, form, shapes, dtype)
    if "decoupled_weight_decay" in vars(p.upstream("megatron.core.optimizer").OptimizerConfig()):
        plain = {"decay": 0.0, "decoupled_weight_decay": False}  # Adam, which without decay does as AdamW
        for form in FORMS:
            check_load(p, "Adam, bf16", form, drawn(p.seed + 5), torch.bfloat16, **plain)
    check_templates(p)
    check_neighbours(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=36, package="megatron", minimal=minimal, prepare=prepare)
