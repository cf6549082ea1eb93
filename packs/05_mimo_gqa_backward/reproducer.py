# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.11", "triton==3.6.0", "numpy<2.4", "einops", "tilelang==0.1.8", "apache-tvm-ffi==0.1.9",
#     "hypothesis",
# ]
# ///
"""Mamba-3 MIMO backward refuses grouped B/C heads (1 < G < H) that its kernels already support.

``mamba_mimo_bwd_combined`` and its varlen twin launch both backward kernels, then raise ValueError "G value of N is
not currently supported!": only the sum of the per-value-head dQ and dK over a group's heads is missing. CPU lane: the
real functions with their two compiled launches replaced by ones that write random per-head gradients, which makes the
reduction the only thing tested, at fixed and at drawn shapes, dtypes and options. CUDA lane: the public autograd entry
with the real kernels, against the same kernels on q, k expanded to G = H, and against a quadratic fp64 formulation.

Upstream is a checkout: ``git clone -b v2.3.2.post1 https://github.com/state-spaces/mamba``, then ``--tree mamba``.
"""

import ast
import contextlib
import itertools
import math
import traceback
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from hypothesis import strategies as st
from torch.nn.functional import pad, silu, softplus
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

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


def signature(layout):
    """How the bug looks in the layout's file."""
    frame = FOLDER.replace(".", "/") + FILES[layout] + ".py"
    return probe.Signature("ValueError", r"^G value of \d+ is not currently supported!$", frame)


def runner(p, guard, layout):
    """(attempt, record): as guards where every tree supports G, else as bug checks with the file's signature."""
    return (p.guard_attempt, p.guard) if guard else (partial(p.attempt, signature=signature(layout)), p.error)


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
        self.generator, self.written, self.count, self.spoilt = generator, {}, 0, {}
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
            if name in WRITTEN:  # absent where its input is
                if tensor is not None:
                    tensor.normal_(generator=self.generator)
                    if name in self.spoilt:
                        tensor.view(-1)[self.spoilt[name]] = math.inf
                self.written[name] = None if tensor is None else tensor.double()

    def expected(self, groups, heads, change=lambda written: written):
        """fp64: a bias belongs to one value head, dQ and dK to the group that upstream's kernel reads for the head.

        ``change`` is made of what was written before it is summed; None stands for a gradient of an absent input.
        """
        group = [eval(self.group_expression, {"i_h": head, "H": heads, "G": groups}) for head in range(heads)]
        written = {name: None if tensor is None else change(tensor) for name, tensor in self.written.items()}
        want = {"dv": written["DV"]}  # [B, S, H, P]
        for name in ("dq", "dk"):
            per_head = written[name.upper()].unflatten(1, (want["dv"].shape[1], -1))  # [B, S, R, H, N]
            shape = [*per_head.shape[:3], groups, per_head.shape[4]]
            want[name] = per_head.new_zeros(shape).index_add_(3, torch.tensor(group), per_head)
            want[name + "_bias"] = per_head.sum(dim=(0, 1)).transpose(0, 1)  # [H, R, N]
        for name in ("dmimo_v", "dmimo_z", "dmimo_o"):  # [B, H, R, P] or [B, H, sequences, R, P]
            per_batch = written[name.upper()]
            want[name] = None if per_batch is None else per_batch.transpose(0, 1).flatten(1, -3).sum(1)
        skip, gate = written["DD"], written["DZ"]  # [B, H] or [B, H, sequences]; [B, S, H, P]
        return want | {"dD": None if skip is None else skip.transpose(0, 1).flatten(1).sum(1), "dz": gate}

    def misrounded(self, got, groups, heads):
        """The share of all gradients' elements that one rounding of a sum in fp32 does not explain.

        Summing n terms x in fp32 is off by at most n * 2**-24 * sum |x|, twice that is allowed; then the result is
        rounded to its own dtype once, by at most half its eps. A sum kept in bf16 rounds after each head, and is over
        this where heads cancel. Infinite where a gradient has the wrong shape, or is there for an input that is absent.
        """
        wrong = elements = 0
        terms, total = (self.expected(groups, heads, change) for change in (torch.ones_like, torch.abs))
        for name, right in self.expected(groups, heads).items():
            if right is None or got[name] is None or got[name].shape != right.shape:
                if right is not None or got[name] is not None:
                    return math.inf
                continue
            bound = torch.finfo(got[name].dtype).eps / 2 * right.abs() + terms[name] * 2**-23 * total[name]
            wrong += (~((got[name].double() - right).abs() <= bound)).sum().item()
            elements += right.numel()
        return wrong / elements


def combined(
    module,
    layout,
    groups,
    heads,
    dtype,
    generator,
    *,
    batch=2,
    lengths=(10, 6),
    rank=2,
    n=8,
    width=4,
    gate=True,
    skip=True,
    project=True,
    chunk=8,
    named=False,
    packed=True,
):
    """Call upstream's combined backward on small random tensors, which it must not change; {gradient name: tensor}.

    ``lengths`` are the packed sequences; dense, a batch has as many tokens as they. ``gate``, ``skip`` and ``project``:
    whether there are z, D and mimo_o. ``named``: the dtype is given by its name. Without ``packed`` the varlen function
    is not told of sequences.
    """
    length, cuts = sum(lengths), [0, *itertools.accumulate(lengths)]
    varlen = {"cu_seqlens": torch.tensor(cuts, dtype=torch.int32)} if layout == "varlen" and packed else {}
    batch, chunks = (1, length // chunk + len(lengths)) if varlen else (batch, -(-length // chunk))

    def random(*shape, dtype=torch.float32):
        return torch.randn(shape, generator=generator).to(dtype)

    q, k = (random(batch, length, rank, groups, n, dtype=dtype) for _ in range(2))  # [B, S, R, G, N]
    v, z = (random(batch, length, heads, width, dtype=dtype) for _ in range(2))  # [B, S, H, P]
    dout = random(batch, length, *[rank][project:], heads, width, dtype=dtype)  # [B, S, H, P]; all R if not projected
    q_bias, k_bias = random(heads, rank, n), random(heads, rank, n)  # [H, R, N]
    mimo_v, mimo_o, mimo_z = (random(heads, rank, width) for _ in range(3))  # [H, R, P]
    angles, segsum = (random(batch, length, heads, n // 4), -random(batch, heads, chunks, chunk, chunk).abs())
    decay, decay_rev, dt, trap = (-random(batch, heads, length).abs() for _ in range(4))  # [B, H, S]
    d, mimo_o = random(heads) if skip else None, mimo_o if project else None
    z, mimo_z = (z, mimo_z) if gate else (None, None)
    function = getattr(module, "mamba_mimo_bwd_combined" + ("_varlen" if layout == "varlen" else ""))
    args = (dout, q, k, v, q_bias, k_bias, mimo_v, mimo_o, z, mimo_z, angles, decay, decay_rev, -dt, trap)
    before = [None if given is None else given.clone() for given in args]
    results = function(*args, d, segsum, chunk, 4, str(dtype)[6:] if named else dtype, **varlen)
    if any(given is not None and not given.equal(kept) for given, kept in zip(args, before, strict=True)):
        raise AssertionError("the backward changed its inputs")
    return dict(zip(RETURNS, results, strict=False))  # later releases return more


def refused(call):
    """Raises unless ``call`` raises ValueError: a head count that is no multiple of G has no meaning."""
    try:
        call()
    except ValueError:
        return
    raise AssertionError("a head count that is not a multiple of G was accepted")


# {argument: strategy}; heads per group and groups go beside it
SPACE = {"dtype": st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), "batch": st.integers(1, 3)}
SPACE |= {"lengths": st.lists(st.integers(1, 12), min_size=1, max_size=3), "rank": st.integers(1, 3)}
SPACE |= {"n": st.sampled_from([4, 8, 12]), "width": st.integers(1, 6)}
SPACE |= dict.fromkeys(("gate", "skip", "project", "named"), st.booleans()) | {"chunk": st.sampled_from([4, 8, 16])}
GROUPED = {"groups": st.integers(2, 9), "share": st.integers(2, 9)}  # share: heads of a group
INDIVISIBLE = st.tuples(st.integers(2, 9), st.integers(1, 12)).filter(lambda pair: pair[1] % pair[0])


def without_tails(module):
    """In this ``with`` dA, dt and the trapezoid are not computed: interpreted they take long, and fold no heads."""
    tails = {name: lambda dssda, segsum, dda, *_: dda for name in vars(module) if name.startswith("bwd_dadt_fused")}
    tails |= {name: lambda trap, dt, *_: (dt, trap) for name in vars(module) if name.startswith("bwd_dtrap_ddt")}
    return mock.patch.multiple(module, **tails)


def drawn_lane(p, module, layout, launches):
    """Shapes, dtypes and options that no tree can foresee."""

    def call(groups, heads, **options):
        launches.generator.manual_seed(p.seed)
        return combined(module, layout, groups, heads, generator=launches.generator, **options)

    @lru_cache
    def at_every_head(dtype):
        return call(2, 2, dtype=dtype)

    def misrounded(groups, share, **options):
        try:
            got = call(groups, groups * share, **options)
            share_wrong = launches.misrounded(got, groups, groups * share)
            first = {name: None if value is None else value.clone() for name, value in got.items()}
            combined(module, layout, groups, groups * share, generator=launches.generator, **options)  # other numbers
            if any(value is not None and not value.equal(first[name]) for name, value in got.items()):
                raise AssertionError("a second call changed what the first returned")
        except Exception as error:
            if signature(layout).matches(error):
                return 1  # not one gradient comes back
            print(f"{layout} G={groups} H={groups * share} {options}: {error!r}")
            return math.inf
        like = at_every_head(options["dtype"])
        same = all(got[name] is None or got[name].dtype == right.dtype for name, right in like.items())
        return share_wrong if same else math.inf

    def launched(pair, **options):
        """Launches before the function itself refuses. Where something below it refuses, after the launches, this
        sees nothing: main does so, and only the released file's order is in question here."""
        before = launches.count
        try:
            call(*pair, **options)
        except ValueError as error:
            own = traceback.extract_tb(error.__traceback__)[-1].filename == module.__file__
            return launches.count - before if own else 0
        except Exception as error:
            print(f"{layout} G, H = {pair}: {error!r}")
        return math.inf

    def supported(pair, **options):
        return misrounded(*pair, **options)

    told = {"unit": "of all elements", "reference": "fp64 sum of the per-head gradients; dtypes as at G = H"}
    pairs = {"pair": st.tuples(st.just(1), st.integers(1, 6)) | st.tuples(st.integers(1, 6), st.just(1))}
    with without_tails(module):
        name = f"{layout} drawn, 1 < G < H: misrounded"
        p.drawn(name, misrounded, 0, space=GROUPED | SPACE, count=16, bug_above=1, **told)
        p.drawn(f"{layout} drawn, G = 1 or G = H: misrounded", supported, 0, space=pairs | SPACE, count=8, **told)
        name, pairs = f"{layout} drawn, H no multiple of G: launches before its refusal", {"pair": INDIVISIBLE}
        p.drawn(name, launched, 0, space=pairs | SPACE, count=8, bug_above=1, reference="refused first")


class Largest(TorchDispatchMode):
    """``elements`` of the largest tensor that an operator makes, views left out."""

    elements = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        made = operator(*args, **(kwargs or {}))
        for one, told in zip(
            made if isinstance(made, tuple | list) else (made,), operator._schema.returns, strict=False
        ):
            if isinstance(one, torch.Tensor) and not told.alias_info:
                self.elements = max(self.elements, one.numel())
        return made


def check_fold(p, module, layout, launches):
    """What the fold of heads into groups costs and leaves: memory, host waits, and where an overflow is seen."""
    attempt, record = runner(p, False, layout)
    groups, heads, bad, seen = 3, 12, 5, Largest()

    def call():
        launches.generator.manual_seed(p.seed)
        return combined(module, layout, groups, heads, torch.float16, launches.generator)

    def folded():
        with seen:
            return call()

    with without_tails(module):
        got = attempt(f"{layout} G={groups} H={heads}, fp16: runs", folded)
        if got is None:
            return
        per_head = launches.written["DQ"].numel()
        loose = sum(got[name].untyped_storage().nbytes() > 2 * got[name].numel() for name in ("dq", "dk"))
        record(f"{layout} fold: gradients that hold more memory than theirs", loose, 0, reference="of the group alone")
        share = seen.elements / per_head
        record(f"{layout} fold: largest tensor, in per-head gradients", share, 1, reference="the kernel's own output")
        record(f"{layout} fold: host waits", p.waits(call).total(), 0, reference="nothing is asked of the GPU")
        launches.spoilt = {"DQ": bad, "DK": bad}
        try:
            got, want = call(), launches.expected(groups, heads)
        finally:
            launches.spoilt = {}
        apart = sum(int((got[name].isfinite() != want[name].isfinite()).sum()) for name in ("dq", "dk"))
        record(f"{layout} fold: an overflow that is lost or spread", apart, 0, reference="its head's group alone")


def check_unpacked(p, generator):
    """The varlen function that is told of no sequences is the dense one, to the bit."""
    dense, varlen = (p.upstream(FOLDER + file) for file in FILES.values())
    attempt, record = runner(p, False, "dense")  # the dense file's error, through the varlen function

    def both():
        found = []
        for module, layout in ((varlen, "varlen"), (dense, "dense")):
            generator.manual_seed(p.seed)
            found.append(combined(module, layout, 3, 6, torch.float32, generator, packed=False))
        return sum(not value.equal(found[1][name]) for name, value in found[0].items())

    with without_tails(dense):
        unlike = attempt("varlen without cu_seqlens: runs", both)
    if unlike is not None:
        record("varlen without cu_seqlens: gradients unlike the dense ones", unlike, 0, reference="the dense function")


def cpu_lane(p):
    """Fixed (G, H) in both layouts, in fp32, and bf16 where the reduction also rounds; then drawn ones."""
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
            with contextlib.nullcontext() if heads == 4 else without_tails(module):
                got = attempt(f"{case}: runs", partial(combined, module, layout, groups, heads, dtype, generator))
            if got is not None:
                # fp32 sums of at most 32 terms; in bf16 one rounding (2**-8 of an element at most) ends an fp32 sum
                limit = 1e-6 if dtype == torch.float32 else 2**-8
                error, _ = worst(got, launches.expected(groups, heads))
                record(f"{case}: worst of 10 gradients", error, limit, reference="fp64 sum of the per-head gradients")
        for groups, heads in ((4, 6), (3, 8)):
            call = partial(combined, module, layout, groups, heads, torch.float32, generator)
            p.guard_attempt(f"{layout} G={groups} H={heads}: ValueError", partial(refused, call))
        check_fold(p, module, layout, launches)
        drawn_lane(p, module, layout, launches)
    check_unpacked(p, generator)


# ---- CUDA lane: the real kernels ----

HEADS, LENGTH, RANK, STATE, WIDTH, CHUNK = 16, 96, 4, 128, 64, 16
LEAVES = ("q", "k", "v", "q_bias", "k_bias")
BF16 = ("q", "k", "v", "z", "trap")  # as in training; the rest is fp32


def problem(groups, batch, seed, heads=HEADS, length=LENGTH):
    """fp64 tensors on the GPU whose values bf16 holds (adt: fp32), so that both sides see the same inputs."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator).bfloat16().double().cuda()

    x = {name: random(batch, length, RANK, groups, STATE) for name in ("q", "k")}  # [B, S, R, G, N]
    x |= {name: random(heads, RANK, STATE) for name in ("q_bias", "k_bias")}  # [H, R, N]
    x |= {name: random(batch, length, heads, WIDTH) for name in ("v", "z", "dout")}  # [B, S, H, P]
    x |= {name: random(heads, RANK, WIDTH) / RANK for name in ("mimo_v", "mimo_z", "mimo_o")}  # [H, R, P]
    x |= {"trap": random(batch, heads, length), "d": random(heads), "angles": random(batch, length, heads, STATE // 4)}
    x["dt"] = softplus(random(batch, heads, length) - 3).bfloat16().double()  # [B, H, S], about 0.05
    x["adt"] = (-x["dt"] * random(batch, heads, length).sigmoid()).float().double()
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
    q, k = (
        x[n][:, at].repeat_interleave(x["v"].shape[2] // x[n].shape[3], 3) + x[n + "_bias"].transpose(0, 1)
        for n in "qk"
    )
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


def drawn_kernels(p, mamba3_mimo, layout):
    """The real kernels at head counts, groups and lengths that no tree can foresee; one compilation serves them all."""

    def expanded(groups, share, batch, lengths):
        cuts = [0, *itertools.accumulate(lengths)]
        bounds = None if layout == "dense" else torch.tensor(cuts, dtype=torch.int32, device="cuda")
        x = problem(groups, batch if bounds is None else 1, p.seed, groups * share, cuts[-1])
        try:
            got = gradients(partial(kernels, mamba3_mimo, bounds, 1), x)
        except ValueError as error:
            return 1 if signature(layout).matches(error) else math.inf  # a gradient that is missing is wholly off
        return worst(got, gradients(partial(kernels, mamba3_mimo, bounds, share), x))[0]

    # the dense layout takes whole chunks only
    length = st.integers(17, 40) if layout == "varlen" else st.sampled_from([CHUNK, 2 * CHUNK, 3 * CHUNK])
    space = GROUPED | {"batch": st.integers(1, 2), "lengths": st.lists(length, min_size=1, max_size=3)}
    name, reference = (
        f"{layout} drawn, 1 < G < H bf16: worst of 5 gradients, expanded",
        "same kernels at G = H, fp64 sum",
    )
    p.drawn(name, expanded, 2**-8, space=space, count=4, bug_above=1, reference=reference)


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
    for layout in FILES:
        drawn_kernels(p, mamba3_mimo, layout)


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
