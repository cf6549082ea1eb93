# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.11", "triton==3.6.0", "numpy<2.4", "einops", "tilelang==0.1.8", "apache-tvm-ffi==0.1.9",
# ]
# ///
"""Mamba-3 MIMO backward refuses grouped B/C heads (1 < G < H) that its kernels already support.

``mamba_mimo_bwd_combined`` and its varlen twin launch both backward kernels, then raise ValueError "G value of N is
not currently supported!": only the sum of the per-value-head dQ and dK over a group's heads is missing. CPU lane: the
real functions with their two compiled launches replaced by ones that write random per-head gradients, which makes the
reduction the only thing tested. CUDA lane: the public autograd entry with the real kernels, against the same kernels
on q, k expanded to G = H, and against a quadratic fp64 formulation.

Upstream is a checkout: ``git clone -b v2.3.2.post1 https://github.com/state-spaces/mamba``, then ``--tree mamba``.
"""

import ast
import itertools
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.nn.functional import pad, silu, softplus
from torch.overrides import TorchFunctionMode

from reproducers import probe


def minimal():
    """The backward of a layer with 2 groups of B and C for its 4 heads; needs a GPU."""
    import torch
    from mamba_ssm.modules.mamba3 import Mamba3

    torch.manual_seed(0)
    options = {"is_mimo": True, "mimo_rank": 4, "chunk_size": 16, "ngroups": 2}
    layer = Mamba3(128, **options, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(1, 64, 128, device="cuda", dtype=torch.bfloat16)
    out = layer(x)
    out.sum().backward()  # ValueError: G value of 2 is not currently supported!


FOLDER = "mamba_ssm.ops.tilelang.mamba3."
FILES = {"dense": "mamba3_mimo_bwd", "varlen": "mamba3_mimo_bwd_varlen"}


def runner(p, guard, layout):
    """(attempt, record): as guards where every tree supports G, else as bug checks with the file's signature."""
    frame = FOLDER.replace(".", "/") + FILES[layout] + ".py"
    bug = probe.Signature("ValueError", r"^G value of \d+ is not currently supported!$", frame)
    return (p.guard_attempt, p.guard) if guard else (partial(p.attempt, signature=bug), p.error)


def worst(got, want):
    """(largest relative error norm in fp64, all of them as text); infinite where the shapes differ."""
    errors = {}
    for name, right in want.items():
        left, right = got[name].double(), right.double()
        errors[name] = ((left - right).norm() / right.norm()).item() if left.shape == right.shape else math.inf
    text = " ".join(f"{name} {error:.1e}" for name, error in errors.items())
    return max(errors.values(), key=lambda error: math.inf if math.isnan(error) else error), text


# ---- CPU lane: the reduction alone ----


class OnCpu(TorchFunctionMode):
    """The forward wrapper allocates on "cuda" by name."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        named = dict(kwargs or {})
        return function(*args, **named | ({"device": "cpu"} if str(named.get("device")).startswith("cuda") else {}))


RETURNS = ("dq", "dk", "dv", "ddA", "ddt", "dtrap", "dq_bias", "dk_bias", "dmimo_v", "dmimo_z", "dmimo_o", "dangles")
RETURNS += ("dD", "dz")
WRITTEN = ("DMIMO_O", "DZ", "DMIMO_Z", "DK", "DV", "DMIMO_V", "DQ", "DD")


class Launches:
    """Stand-ins for one module's two compiled kernels; arguments are named after the real kernels' parameters."""

    def __init__(self, module, generator):
        self.generator, self.written, self.count = generator, {}, 0
        tree = ast.parse(Path(module.__file__).read_text())
        functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for factory in ("mamba_mimo_bwd_fwd", "mamba_mimo_bwd_bwd"):
            kernel = functions[factory + "_kernel"]
            launch = partial(self.launch, [argument.arg for argument in kernel.args.args])
            setattr(module, factory, lambda *_, launch=launch, **__: launch)  # later releases add keywords
        assigns = [node for node in ast.walk(kernel) if isinstance(node, ast.Assign)]
        self.group_expression = next(ast.unparse(n.value) for n in assigns if ast.unparse(n.targets[0]) == "i_h_qk")

    def launch(self, names, *tensors):
        self.count += 1
        for name, tensor in zip(names, tensors, strict=True):
            if name in WRITTEN:
                self.written[name] = tensor.normal_(generator=self.generator).double()

    def expected(self, groups, heads):
        """fp64: a bias belongs to one value head, dQ and dK to the group that upstream's kernel reads for the head."""
        group = [eval(self.group_expression, {"i_h": head, "H": heads, "G": groups}) for head in range(heads)]
        want = {"dv": self.written["DV"]}  # [B, S, H, P]
        for name in ("dq", "dk"):
            per_head = self.written[name.upper()].unflatten(1, (want["dv"].shape[1], -1))  # [B, S, R, H, N]
            shape = [*per_head.shape[:3], groups, per_head.shape[4]]
            want[name] = per_head.new_zeros(shape).index_add_(3, torch.tensor(group), per_head)
            want[name + "_bias"] = per_head.sum(dim=(0, 1)).transpose(0, 1)  # [H, R, N]
        for name in ("dmimo_v", "dmimo_z", "dmimo_o"):  # [B, H, R, P] or [B, H, sequences, R, P]
            want[name] = self.written[name.upper()].transpose(0, 1).flatten(1, -3).sum(1)
        want["dD"] = self.written["DD"].transpose(0, 1).flatten(1).sum(1)  # [B, H] or [B, H, sequences]
        return want


def combined(module, layout, groups, heads, dtype, generator):
    """Call upstream's combined backward on small random tensors; {gradient name: tensor}."""
    batch, length, rank, n, width, chunk = ((2 if layout == "dense" else 1), 16, 2, 8, 4, 8)
    varlen = {"cu_seqlens": torch.tensor([0, 10, length], dtype=torch.int32)} if layout == "varlen" else {}
    chunks = length // chunk + 2 * len(varlen)

    def random(*shape, dtype=torch.float32):
        return torch.randn(shape, generator=generator).to(dtype)

    q, k = (random(batch, length, rank, groups, n, dtype=dtype) for _ in range(2))  # [B, S, R, G, N]
    v, z, dout = (random(batch, length, heads, width, dtype=dtype) for _ in range(3))  # [B, S, H, P]
    q_bias, k_bias = random(heads, rank, n), random(heads, rank, n)  # [H, R, N]
    mimo_v, mimo_o, mimo_z = (random(heads, rank, width) for _ in range(3))  # [H, R, P]
    angles, segsum = (random(batch, length, heads, n // 4), -random(batch, heads, chunks, chunk, chunk).abs())
    decay, decay_rev, dt, trap = (-random(batch, heads, length).abs() for _ in range(4))  # [B, H, S]
    function = getattr(module, "mamba_mimo_bwd_combined" + ("_varlen" if varlen else ""))
    args = (dout, q, k, v, q_bias, k_bias, mimo_v, mimo_o, z, mimo_z, angles, decay, decay_rev, -dt, trap)
    return dict(
        zip(RETURNS, function(*args, random(heads), segsum, chunk, 4, dtype, **varlen), strict=False)
    )  # later releases return more


def refused(call):
    """Raises unless ``call`` raises ValueError: a head count that is no multiple of G has no meaning."""
    try:
        call()
    except ValueError:
        return
    raise AssertionError("a head count that is not a multiple of G was accepted")


def cpu_lane(p):
    """Every (G, H) in both layouts; fp32, and bf16 where the reduction also rounds."""
    p.triton_interpreter()
    generator = torch.Generator().manual_seed(p.seed)
    grid = [(1, 4), (4, 4), (2, 4), (2, 8), (4, 8), (3, 6)]
    cases = [*((pair, torch.float32) for pair in grid), ((1, 4), torch.bfloat16), ((2, 8), torch.bfloat16)]
    for layout, file in FILES.items():
        module = p.upstream(FOLDER + file)
        launches = Launches(module, generator)
        for (groups, heads), dtype in cases:
            case = f"{layout} G={groups} H={heads} {str(dtype)[6:]}"
            attempt, record = runner(p, groups in (1, heads), layout)
            generator.manual_seed(p.seed)
            got = attempt(f"{case}: runs", partial(combined, module, layout, groups, heads, dtype, generator))
            if got is not None:
                # fp32 sums of at most 32 terms; in bf16 one rounding (2**-9) ends an fp32 accumulation
                limit = 1e-6 if dtype == torch.float32 else 2**-8
                error, _ = worst(got, launches.expected(groups, heads))
                record(f"{case}: worst of 9 gradients", error, limit, reference="fp64 sum of the per-head gradients")
        for groups, heads in ((4, 6), (3, 8)):
            case, before = f"{layout} G={groups} H={heads}", launches.count
            call = partial(combined, module, layout, groups, heads, torch.float32, generator)
            p.guard_attempt(f"{case}: ValueError", partial(refused, call))
            p.note(f"{case}: launches before refusing", launches.count - before)


# ---- CUDA lane: the real kernels ----

HEADS, LENGTH, RANK, STATE, WIDTH, CHUNK = 16, 96, 4, 128, 64, 16
LEAVES = ("q", "k", "v", "q_bias", "k_bias")
BF16 = ("q", "k", "v", "z", "trap")  # as in training; the rest is fp32


def problem(groups, batch, seed):
    """fp64 tensors on the GPU whose values bf16 holds (adt: fp32), so that both sides see the same inputs."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator).bfloat16().double().cuda()

    x = {name: random(batch, LENGTH, RANK, groups, STATE) for name in ("q", "k")}  # [B, S, R, G, N]
    x |= {name: random(HEADS, RANK, STATE) for name in ("q_bias", "k_bias")}  # [H, R, N]
    x |= {name: random(batch, LENGTH, HEADS, WIDTH) for name in ("v", "z", "dout")}  # [B, S, H, P]
    x |= {name: random(HEADS, RANK, WIDTH) / RANK for name in ("mimo_v", "mimo_z", "mimo_o")}  # [H, R, P]
    x |= {"trap": random(batch, HEADS, LENGTH), "d": random(HEADS), "angles": random(batch, LENGTH, HEADS, STATE // 4)}
    x["dt"] = softplus(random(batch, HEADS, LENGTH) - 3).bfloat16().double()  # [B, H, S], about 0.05
    x["adt"] = (-x["dt"] * random(batch, HEADS, LENGTH).sigmoid()).float().double()
    return x


def gradients(forward, x):
    """{leaf: fp64 gradient} of ``forward`` under the upstream gradient x["dout"]."""
    leaves = {name: x[name].detach().requires_grad_() for name in LEAVES}
    out = forward({**x, **leaves})
    found = torch.autograd.grad(out, list(leaves.values()), x["dout"].to(out.dtype))
    torch.cuda.synchronize()
    return dict(zip(LEAVES, found, strict=True))


def kernels(mamba3_mimo, bounds, copies, x):
    """Upstream's public entry; q and k are first repeated, in fp64, to ``copies`` heads per group."""
    x = {**x, **{name: x[name].repeat_interleave(copies, dim=3) for name in ("q", "k")}}
    t = {name: value.to(torch.bfloat16 if name in BF16 else torch.float32) for name, value in x.items()}
    names = ("q", "k", "v", "adt", "dt", "trap", "q_bias", "k_bias", "mimo_v", "mimo_z", "mimo_o", "angles", "d", "z")
    return mamba3_mimo(*(t[name] for name in names), CHUNK, 4, torch.bfloat16, cu_seqlens=bounds)


def quadratic(cuts, x):
    """[B, S, H, P] in fp64: per sequence decayed causal attention over all ranks, plus same-step and skip terms."""
    return torch.cat([sequence(x, slice(low, high)) for low, high in itertools.pairwise(cuts)], dim=1)


def sequence(x, at):
    """[B, T, H, P] output of the sequence made of tokens ``at``; T, U are steps, R, I ranks (out, in)."""
    q, k = (x[n][:, at].repeat_interleave(HEADS // x[n].shape[3], 3) + x[n + "_bias"].transpose(0, 1) for n in "qk")
    v, z = (x[n][:, at, None] * x["mimo_" + n].transpose(0, 1) for n in "vz")  # [B, T, R, H, P]; q, k: [B, T, R, H, N]
    dt, trap, adt = (x[n][:, :, at] for n in ("dt", "trap", "adt"))  # [B, H, T]
    theta = (math.pi * x["angles"][:, at].tanh() * dt.transpose(1, 2)[..., None]).cumsum(1)[:, :, None]  # [B,T,1,H,N/4]

    def rotate(t):
        a, b, c, d = t.chunk(4, dim=-1)  # the first and third quarters rotate as pairs
        return torch.cat([theta.cos() * a - theta.sin() * c, b, theta.sin() * a + theta.cos() * c, d], dim=-1)

    gamma = dt * trap.sigmoid()  # this step's share, and below the next step's (none after the last)
    scale = gamma + pad(dt[..., 1:] * (-trap[..., 1:]).sigmoid(), (0, 1))
    total = adt.cumsum(-1)
    causal = torch.ones(total.shape[-1:] * 2, dtype=torch.bool, device=total.device).tril(-1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, -math.inf).exp() * scale[:, :, None]
    past = torch.einsum("btrhn,buihn->bhtrui", rotate(q), rotate(k)) * decay[:, :, :, None, :, None]
    same = torch.einsum("btrhn,btihn->bhtri", q, k) * gamma[..., None, None]
    y = torch.einsum("bhtrui,buihp->btrhp", past, v) + torch.einsum("bhtri,btihp->btrhp", same, v)
    return ((y + x["d"][:, None] * v) * silu(z) * x["mimo_o"].transpose(0, 1)).sum(2)


def cuda_lane(p):
    """G = 1 and G = H are supported on any tree: as guards they also calibrate the limits of the grouped cases."""
    if not torch.cuda.is_available():
        raise probe.CannotTest("the cuda lane needs a GPU")
    mamba3_mimo = p.upstream(FOLDER + "mamba3_mimo").mamba3_mimo
    p.skip("H not a multiple of G: ValueError", "a tree that refuses after its launches would read past the groups")
    for layout, groups in itertools.product(FILES, (1, HEADS, 2, 4, 8)):
        cuts = [0, LENGTH] if layout == "dense" else [0, 40, LENGTH]  # 40 is no multiple of the chunk
        bounds = None if layout == "dense" else torch.tensor(cuts, dtype=torch.int32, device="cuda")
        case, x = (f"{layout} G={groups} H={HEADS} bf16", problem(groups, 2 if layout == "dense" else 1, p.seed))
        attempt, record = runner(p, groups in (1, HEADS), layout)
        got = attempt(f"{case}: runs", partial(gradients, partial(kernels, mamba3_mimo, bounds, 1), x))
        if got is None:
            continue
        # the kernels see the same numbers per head: only the bf16 rounding (2**-9) of the sum over heads may differ
        error, text = worst(got, gradients(partial(kernels, mamba3_mimo, bounds, HEADS // groups), x))
        record(f"{case}: worst of 5 gradients, expanded", error, 2**-8, reference="same kernels at G = H, fp64 sum")
        p.note(f"{case}: errors, expanded", text)
        # some ten bf16 roundings (2**-9 each) in a row; a wrong group or a missing head is of order 1
        error, text = worst(got, gradients(partial(quadratic, cuts), x))
        record(f"{case}: worst of 5 gradients, quadratic", error, 5e-2, reference="quadratic form in fp64")
        p.note(f"{case}: errors, quadratic", text)


def prepare(p):
    """For ``minimal``: on a CPU nothing is launched, Triton runs interpreted and "cuda" is the CPU."""
    p.namespace()
    if p.lane == "cuda":
        return
    p.triton_interpreter()
    for file, factory in (("fwd", "mamba_mimo_fwd"), ("bwd", "mamba_mimo_bwd_fwd"), ("bwd", "mamba_mimo_bwd_bwd")):
        setattr(p.upstream(FOLDER + "mamba3_mimo_" + file), factory, lambda *_, **__: lambda *tensors: None)
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=1)
    public = p.upstream(FOLDER + "mamba3_mimo")  # its angles are computed in PTX, which the interpreter has not
    public.angle_dt_fwd = lambda angle, dt, **_: (angle, None)
    public.angle_dt_bwd = lambda grad_out, angle, dt, **_: (grad_out, torch.zeros_like(dt), None)
    OnCpu().__enter__()


def reproduce(p):
    """Both files, dense and varlen, by lane."""
    p.namespace()  # the package's __init__ imports compiled extensions that this code does not use
    cpu_lane(p) if p.lane == "cpu" else cuda_lane(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=5, package="mamba_ssm", minimal=minimal, prepare=prepare)
