# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.11", "triton==3.6.0", "numpy<2.6", "einops", "tilelang==0.1.8", "apache-tvm-ffi==0.1.9",
#     "mamba-ssm==2.3.2.post1",
# ]
# ///
"""Mamba-3 MIMO backward refuses grouped B/C heads (1 < G < H) that its kernels already support.

``mamba_mimo_bwd_combined`` and its varlen twin launch both backward kernels, then raise ValueError "G value of N is
not currently supported!": only the sum of the per-value-head dQ and dK over a group's heads is missing. CPU lane: the
real functions with their two compiled launches replaced by ones that write random per-head gradients, which makes the
reduction the only thing tested. CUDA lane: the public autograd entry with the real kernels, against the same kernels
on q, k expanded to G = H, and against a quadratic fp64 formulation.
"""

import ast
import math
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import pad, silu, softplus

from reproducers import probe

FOLDER = "mamba_ssm.ops.tilelang.mamba3."
FILES = {"dense": "mamba3_mimo_bwd", "varlen": "mamba3_mimo_bwd_varlen"}
RETURNS = "dq dk dv ddA ddt dtrap dq_bias dk_bias dmimo_v dmimo_z dmimo_o dangles dD dz".split()


def unsupported(layout):
    """The bug's signature in the dense or the varlen file."""
    frame = FOLDER.replace(".", "/") + FILES[layout] + ".py"
    return probe.Signature("ValueError", r"^G value of \d+ is not currently supported!$", frame)


def relative(got, want):
    """Relative error norm in fp64, infinite when the shapes differ (subtraction would broadcast)."""
    if got.shape != want.shape:
        return math.inf
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def worst(got, want):
    """(largest relative error over the tensors of ``want``, all of them as text)."""
    errors = {name: relative(got[name], want[name]) for name in want}
    return max(errors.values(), key=lambda e: math.inf if math.isnan(e) else e), str(errors)


# ---- CPU lane: the reduction alone ----


class Launches:
    """Stand-ins for one module's two compiled kernels; arguments are named after the real kernels' parameters."""

    OUTPUTS = ("DMIMO_O", "DZ", "DMIMO_Z", "DK", "DV", "DMIMO_V", "DQ", "DD")

    def __init__(self, module, generator):
        self.generator, self.written, self.count = generator, {}, 0
        tree = ast.parse(Path(module.__file__).read_text())
        functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for factory in ("mamba_mimo_bwd_fwd", "mamba_mimo_bwd_bwd"):
            kernel = functions[factory + "_kernel"]
            names = [argument.arg for argument in kernel.args.args]
            setattr(module, factory, lambda *_, names=names: lambda *tensors: self.launch(names, tensors))
        assigns = [node for node in ast.walk(kernel) if isinstance(node, ast.Assign)]
        self.group_expression = next(ast.unparse(n.value) for n in assigns if ast.unparse(n.targets[0]) == "i_h_qk")

    def launch(self, names, tensors):
        self.count += 1
        for name, tensor in zip(names, tensors, strict=True):
            if name in self.OUTPUTS:
                self.written[name] = tensor.normal_(generator=self.generator).double()

    def group_of_head(self, groups, heads):
        """[H] the group that upstream's kernel reads for each value head, from its own expression."""
        return torch.tensor([eval(self.group_expression, {"i_h": h, "H": heads, "G": groups}) for h in range(heads)])


def combined(module, layout, groups, heads, dtype, generator):
    """Call upstream's combined backward on small random tensors; {gradient name: tensor}."""
    batch, length, rank, n, width, chunk = (2 if layout == "dense" else 1), 24, 2, 8, 4, 8
    bounds = torch.tensor([0, 10, length], dtype=torch.int32)
    chunks = length // chunk + (2 if layout == "varlen" else 0)

    def random(*shape, dtype=torch.float32):
        return torch.randn(shape, generator=generator).to(dtype)

    q, k = (random(batch, length, rank, groups, n, dtype=dtype) for _ in range(2))  # [B, S, R, G, N]
    v, z, dout = (random(batch, length, heads, width, dtype=dtype) for _ in range(3))  # [B, S, H, P]
    q_bias, k_bias = random(heads, rank, n), random(heads, rank, n)  # [H, R, N]
    mimo_v, mimo_o, mimo_z = (random(heads, rank, width) for _ in range(3))  # [H, R, P]
    angles, segsum = random(batch, length, heads, n // 4), -random(batch, heads, chunks, chunk, chunk).abs()
    decay, decay_rev, dt, trap = (-random(batch, heads, length).abs() for _ in range(4))  # [B, H, S]
    args = (dout, q, k, v, q_bias, k_bias, mimo_v, mimo_o, z, mimo_z, angles, decay, decay_rev, -dt, trap)
    args += (random(heads), segsum, chunk, 4, dtype)
    if layout == "varlen":
        return dict(zip(RETURNS, module.mamba_mimo_bwd_combined_varlen(*args, cu_seqlens=bounds), strict=True))
    return dict(zip(RETURNS, module.mamba_mimo_bwd_combined(*args), strict=True))


def expected(launches, groups, heads):
    """fp64: a bias belongs to one value head, dQ and dK to a group of them, MIMO weights sum over all sequences."""
    group, want = launches.group_of_head(groups, heads), {"dv": launches.written["DV"]}
    for name in ("dq", "dk"):
        dv = want["dv"]
        per_head = launches.written[name.upper()].view(*dv.shape[:2], -1, heads, 8)  # [B, S, R, H, N]
        b, s, r, _, n = per_head.shape
        want[name] = per_head.new_zeros(b, s, r, groups, n).index_add_(3, group, per_head)
        want[name + "_bias"] = per_head.sum(dim=(0, 1)).transpose(0, 1)  # [H, R, N]
    for name in ("dmimo_v", "dmimo_z", "dmimo_o"):  # [B, H, R, P] or [B, H, sequences, R, P]
        want[name] = launches.written[name.upper()].transpose(0, 1).flatten(1, -3).sum(1)
    want["dD"] = launches.written["DD"].transpose(0, 1).flatten(1).sum(1)  # [B, H] or [B, H, sequences]
    return want


def cpu_lane(p):
    """Every (G, H) in both layouts; fp32, and bf16 where the reduction also rounds."""
    p.triton_interpreter()
    generator = torch.Generator().manual_seed(p.seed)
    for layout, file in FILES.items():
        module = p.upstream(FOLDER + file)
        launches = Launches(module, generator)
        grid = [(1, 4), (4, 4), (2, 4), (2, 8), (4, 8), (3, 6)]
        for (groups, heads), dtype in [*((c, torch.float32) for c in grid), *((c, torch.bfloat16) for c in grid[:4])]:
            case = f"{layout} G={groups} H={heads} {str(dtype)[6:]}"
            # fp32 sums of at most 48 terms; bf16 rounds once (2**-9) at the end of an fp32 accumulation
            limit = 1e-6 if dtype == torch.float32 else 2**-8
            call = partial(combined, module, layout, groups, heads, dtype, generator)
            guard = groups in (1, heads)
            if guard:
                got = p.guard_attempt(f"{case}: runs", call)
            else:
                got = p.attempt(f"{case}: supported", call, unsupported(layout))
            if got is not None:
                error, _ = worst(got, expected(launches, groups, heads))
                record = p.guard if guard else p.error
                record(f"{case}: worst of 9 gradients", error, limit, reference="fp64 sum of the per-head gradients")
        for groups, heads in ((4, 6), (3, 8)):
            before = launches.count
            call = partial(combined, module, layout, groups, heads, torch.float32, generator)
            p.guard_attempt(f"{layout} G={groups} H={heads}: ValueError", partial(refused, call))
            p.note(f"{layout} G={groups} H={heads}: launches before refusing", launches.count - before)


def refused(call):
    """Raises unless ``call`` raises ValueError: a head count that is no multiple of G has no meaning."""
    try:
        call()
    except ValueError:
        return
    raise AssertionError("a head count that is not a multiple of G was accepted")


# ---- CUDA lane: the real kernels ----

HEADS, LENGTH, RANK, STATE, WIDTH, CHUNK = 16, 96, 4, 128, 64, 16
LEAVES = ("q", "k", "v", "q_bias", "k_bias")


def problem(groups, layout, seed):
    """fp64 tensors whose values bf16 holds exactly, so that both sides see the same inputs."""
    generator = torch.Generator().manual_seed(seed)
    batch = 2 if layout == "dense" else 1

    def random(*shape):
        return torch.randn(shape, generator=generator).bfloat16().double().cuda()

    x = {name: random(batch, LENGTH, RANK, groups, STATE) for name in ("q", "k")}  # [B, S, R, G, N]
    x |= {name: random(HEADS, RANK, STATE) for name in ("q_bias", "k_bias")}  # [H, R, N]
    x |= {name: random(batch, LENGTH, HEADS, WIDTH) for name in ("v", "z", "dout")}  # [B, S, H, P]
    x |= {name: random(HEADS, RANK, WIDTH) / RANK for name in ("mimo_v", "mimo_z", "mimo_o")}  # [H, R, P]
    x["dt"] = softplus(random(batch, HEADS, LENGTH) - 3).bfloat16().double()  # [B, H, S]
    x["adt"] = -x["dt"] * random(batch, HEADS, LENGTH).sigmoid()
    x["trap"], x["d"] = random(batch, HEADS, LENGTH), random(HEADS)
    x["angles"] = random(batch, LENGTH, HEADS, STATE // 4)
    return x


def gradients(forward, x):
    """{leaf: fp64 gradient} of ``forward`` under the upstream gradient x["dout"]."""
    leaves = {name: x[name].detach().requires_grad_() for name in LEAVES}
    out = forward({**x, **leaves})
    found = torch.autograd.grad(out, list(leaves.values()), x["dout"].to(out.dtype))
    torch.cuda.synchronize()
    return dict(zip(LEAVES, found, strict=True))


def kernels(mamba3_mimo, bounds, copies=1):
    """The public entry in bf16 as training calls it; q and k first repeated to ``copies`` heads per group."""

    def forward(x):
        low = ("q", "k", "v", "z", "trap")
        t = {name: value.to(torch.bfloat16 if name in low else torch.float32) for name, value in x.items()}
        q, k = (t[name].repeat_interleave(copies, dim=3) for name in "qk")
        return mamba3_mimo(
            q, k, t["v"], t["adt"], t["dt"], t["trap"], t["q_bias"], t["k_bias"], t["mimo_v"], t["mimo_z"],
            t["mimo_o"], t["angles"], t["d"], t["z"], CHUNK, 4, torch.bfloat16, cu_seqlens=bounds,
        )  # fmt: skip

    return forward


def reference(bounds):
    """Quadratic form in the inputs' precision: decayed causal attention over ranks, plus same-step and skip terms."""

    def forward(x):
        copies = HEADS // x["q"].shape[3]
        return torch.cat([segment(x, slice(lo, hi), copies) for lo, hi in zip(bounds, bounds[1:], strict=False)], 1)

    return forward


def segment(x, at, copies):
    """[B, T, H, P] output of one sequence, tokens ``at`` of the packed tensors."""
    q, k = (x[n][:, at].repeat_interleave(copies, 3) + x[n + "_bias"].transpose(0, 1) for n in "qk")  # [B, T, R, H, N]
    dt, trap, adt = (x[n][:, :, at] for n in ("dt", "trap", "adt"))  # [B, H, T]
    theta = (math.pi * x["angles"][:, at].tanh() * dt.transpose(1, 2)[..., None]).cumsum(1)[:, :, None]  # [B,T,1,H,N/4]

    def rotate(t):
        a, b, c, d = t.chunk(4, dim=-1)  # the first and third quarters rotate as pairs
        cos, sin = theta.cos(), theta.sin()
        return torch.cat([cos * a - sin * c, b, sin * a + cos * c, d], dim=-1)

    gamma = dt * trap.sigmoid()
    scale = gamma + pad(dt[..., 1:] * (-trap[..., 1:]).sigmoid(), (0, 1))  # the next step's share; none after the last
    total = adt.cumsum(-1)
    causal = torch.ones(total.shape[-1], total.shape[-1], dtype=torch.bool, device=total.device).tril(-1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, -math.inf).exp()  # [B, H, T, T]
    psi_v = x["v"][:, at, None] * x["mimo_v"].transpose(0, 1)  # [B, T, R, H, P]
    past = torch.einsum("btrhn,bsuhn->bhtrsu", rotate(q), rotate(k)) * (decay * scale[:, :, None])[:, :, :, None, :, None]
    same = torch.einsum("btrhn,btuhn->bhtru", q, k) * gamma[..., None, None]
    y = torch.einsum("bhtrsu,bsuhp->btrhp", past, psi_v) + torch.einsum("bhtru,btuhp->btrhp", same, psi_v)
    y = y + x["d"][:, None] * psi_v
    gate = silu(x["z"][:, at, None] * x["mimo_z"].transpose(0, 1)) * x["mimo_o"].transpose(0, 1)
    return (y * gate).sum(2)


def cuda_lane(p):
    """G = 1 and G = H are supported on any tree and calibrate the limits that the grouped cases must meet."""
    if not torch.cuda.is_available():
        raise probe.CannotTest("the cuda lane needs a GPU")
    mamba3_mimo = p.upstream(FOLDER + "mamba3_mimo").mamba3_mimo
    for layout in FILES:
        cuts = [0, LENGTH] if layout == "dense" else [0, 40, LENGTH]  # 40 is no multiple of the chunk
        bounds = None if layout == "dense" else torch.tensor(cuts, dtype=torch.int32, device="cuda")
        for groups in (1, HEADS, 2, 4, 8):
            case, x = f"{layout} G={groups} H={HEADS} bf16", problem(groups, layout, p.seed)
            run, guard = partial(gradients, kernels(mamba3_mimo, bounds), x), groups in (1, HEADS)
            if guard:
                got = p.guard_attempt(f"{case}: runs", run)
            else:
                got = p.attempt(f"{case}: supported", run, unsupported(layout))
            if got is None:
                continue
            record = p.guard if guard else p.error
            # the same kernels see the same numbers per head: only the sum's one bf16 rounding (2**-9) may differ
            error, each = worst(got, gradients(kernels(mamba3_mimo, bounds, HEADS // groups), x))
            record(f"{case}: worst of dq dk dv and biases, expanded", error, 2**-8, reference="G = H kernels, fp64 sum")
            p.note(f"{case}: errors against G = H kernels", each)
            # some ten bf16 roundings (2**-9 each) in a row; a wrong group or a missing head is of order 1
            error, each = worst(got, gradients(reference(cuts), x))
            record(f"{case}: worst of dq dk dv and biases, fp64", error, 5e-2, reference="quadratic form in fp64")
            p.note(f"{case}: errors against fp64", each)


def reproduce(p):
    """Both files, dense and varlen, by lane."""
    p.namespace()  # the package's __init__ imports compiled extensions that this code does not use
    cpu_lane(p) if p.lane == "cpu" else cuda_lane(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=5, package="mamba_ssm")
