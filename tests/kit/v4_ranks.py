"""Steps of DeepSeek-V4 on several ranks by gloo, for children of ``forked``: each rank writes what it has of them under
the names that the whole model has."""

import functools
import zlib
from pathlib import Path
from types import SimpleNamespace

import torch
import v4_model as v4
import v4_network as net
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.pipeline_parallel import get_forward_backward_func

from model.alignment.deepseek_v4 import dims
from model.definition.recipes import Recipe
from model.kinds import catalogue
from model.kinds.run import Run
from model.loop import launch
from model.step import losses as parts
from model.step import overlap
from model.step.deepseek_v4 import DeepseekV4
from model.step.engine import Engine

LENGTHS = (
    [21, 1, 33, 9],
    [64],
    [5, 40, 19],
    [30, 34],
    [2, 60, 2],
    [17, 47],
    [64],
    [8, 8, 48],
)  # micro-batches of a step
TOKENS = 64


# Four published layers; the first two have hash routers, one of them on the second of four stages. Six experts, MTP.
SIZE = net.size(v4.Config(hashed=2))


def named(inner):
    """{its name in the whole model: parameter or buffer} of one rank's stage: layers and experts by their numbers."""
    first, found = inner.decoder.layers[0].layer_number - 1, {}
    own = parallel_state.get_expert_model_parallel_rank() * (
        inner.config.num_moe_experts // parallel_state.get_expert_model_parallel_world_size()
    )
    for name, tensor in [*inner.named_parameters(), *inner.named_buffers()]:
        words = name.split(".")
        if words[:2] == ["decoder", "layers"]:
            words[2] = str(int(words[2]) + first)
        if "local_experts" in words:
            at = words.index("local_experts") + 1
            words[at] = str(int(words[at]) + own)
        found[".".join(words)] = tensor
    return found


def drawn(inner):
    """Every number of a stage by its name alone, so that each layout has the same; tables stay."""
    for name, tensor in named(inner).items():
        if tensor.dtype == torch.float32 and "tokens_per_expert" not in name:
            rng = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            around = 1.0 if "norm" in name or name.endswith("scale") else 0.0
            with torch.no_grad():
                tensor.copy_(around + 0.15 * torch.randn(tensor.shape, generator=rng))


def watched(inner, held, recompute=False):
    """Have each router append the experts of its tokens, bool [T, E], to ``held`` under its layer's number; what is
    computed again is left out."""

    def note(kept, out):
        if torch.is_grad_enabled() is not recompute:
            kept.append(out[1].clone())

    for name, module in inner.named_modules():
        if name.endswith("mlp.router"):
            first, _, number = name.split(".")[:3]
            layer = first if first == "mtp" else str(inner.decoder.layers[int(number)].layer_number)
            kept = held.setdefault(layer, [])
            module.register_forward_hook(lambda _, __, out, kept=kept: note(kept, out))


def gradients(inner):
    """Reduced over all ranks."""
    return {n: p.main_grad.clone() for n, p in named(inner).items() if isinstance(p, torch.nn.Parameter)}


def rows(place):
    """This data-parallel rank's micro-batches of ``LENGTHS``, with their numbers."""
    mine = [*enumerate(LENGTHS)][place :: parallel_state.get_data_parallel_world_size()]
    return [n for n, _ in mine], [net.micro_batch(*v4.row(list(one), dims.config(SIZE), n)) for n, one in mine]


def started(run):
    launch.start(launch.world(), SimpleNamespace(device="cpu"), run, seed=0)
    return parallel_state.get_data_parallel_rank()


def step(folder, optimizer="adamw", steps=2, **layout):
    """Steps of an engine; writes what this rank saw."""
    run = Run(**layout)
    place = started(run)
    recipe = Recipe(
        size=SIZE.name, steps=9, warmup=0, learning_rate=1e-3, optimizer=optimizer, bf16=False, sequence=TOKENS
    )
    engine, held, reduced = Engine(SIZE, run, recipe, catalogue.choose(SIZE, run)), {}, {}
    drawn(engine.inner)
    watched(engine.inner, held, run.recompute)

    def finalize(*given, **rest):
        engine._finalize(*given, **{**rest, "force_all_reduce": True})  # else each rank has a share of the sums
        if not reduced:
            reduced.update(gradients(engine.inner))

    engine.config.finalize_model_grads_func = finalize
    numbers, batches = rows(place)
    outcomes = [engine.step(batches) for _ in range(steps)]
    said = [[*one.losses.values(), one.grad_norm] for one in outcomes]
    write(folder, reduced, held, numbers, said)


class Interposed(HybridModel):
    """Megatron's model with the number of a rank's chunk, which the trainer has no use for: it has one a rank."""

    chunk = 0

    def __init__(self, **given):
        super().__init__(vp_stage=self.chunk, **given)


def chunk(number, run, ranks, chunks, beside):
    """One of several stages that a rank has, of a ``run`` with as many stages as there are chunks in all."""

    class Chunk(DeepseekV4, Interposed):
        chunk = number

        def _configuration(self, *given):
            made = super()._configuration(*given)
            made.pipeline_model_parallel_size, made.virtual_pipeline_model_parallel_size = ranks, chunks
            made.microbatch_group_size_per_vp_stage = ranks
            made.overlap_p2p_comm, made.batch_p2p_comm = beside, not beside
            made.variable_seq_lengths = True  # stages tell each other the shapes, which are as wide as all streams
            return made

    at = {"ignore_virtual": False, "vp_stage": number}
    first, last = parallel_state.is_pipeline_first_stage(**at), parallel_state.is_pipeline_last_stage(**at)
    return Chunk(SIZE, run, catalogue.choose(SIZE, run), pre_process=first, post_process=last)


def interleaved(folder, ranks, chunks, beside):
    """A step's losses and gradients by Megatron's interleaved schedule."""
    place = started(Run(pipeline_parallel=ranks))
    parallel_state.set_virtual_pipeline_model_parallel_world_size(chunks)
    run, held, reduced = Run(pipeline_parallel=ranks * chunks), {}, {}
    inner = [chunk(number, run, ranks, chunks, beside) for number in range(chunks)]
    for one in inner:
        drawn(one)
        watched(one, held)
    model = [DistributedDataParallel(one.config, overlap.config(run), one) for one in inner]
    config = inner[0].config
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = [one.no_sync for one in model]
    for one in model:
        one.zero_grad_buffer()
    numbers, batches = rows(place)
    engine = SimpleNamespace(run=run, size=SIZE, recipe=SimpleNamespace(micro_batch=1), longest=TOKENS + 1)
    shared = Engine._shares(engine, batches)[0]
    found = get_forward_backward_func(ranks, chunks)(
        forward_step_func=functools.partial(Engine._forward, engine),
        data_iterator=[iter(shared) for _ in model],
        model=model,
        num_microbatches=len(shared),
        seq_length=TOKENS,
        micro_batch_size=1,
        forward_only=False,
        force_all_reduce=True,
    )
    for one in inner:
        reduced |= gradients(one)
    write(
        folder, reduced, held, numbers, [[*parts.mean(found).tolist(), *parts.auxiliary(config, len(batches)).tolist()]]
    )


def write(folder, reduced, held, numbers, said):
    routed = {}
    for layer, maps in held.items():
        assert len(maps) % len(numbers) == 0
        routed |= {(layer, *divmod(at, len(numbers))): found for at, found in enumerate(maps)}
    routed = {(layer, step, numbers[at]): found for (layer, step, at), found in routed.items()}
    path = Path(folder) / f"{launch.world().rank}.pt"
    torch.save({"gradients": reduced, "routed": routed, "said": said}, path)
