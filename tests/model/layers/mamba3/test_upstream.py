"""Whether the maths is mamba-ssm's: its own decode step in torch, and the form pack 05 measured its kernels against.

On an H200 the real kernels' q, k, v and bias gradients were within 6.5e-3 of that form (receipts/05, cuda lane).
"""

import ast
import importlib
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from mamba3_cases import bounds, error, problem, upstream_tree

from model.layers.mamba3.mixer import build_mamba3
from model.layers.mamba3.reference import mamba3_mimo_reference
from model.layers.mamba3.upstream import KERNEL, import_mamba3, torch_class, torch_norm
from model.patched.seams import rebound
from reproducers.record.schema import ROOT

pytestmark = pytest.mark.upstream
EXTENSION = "selective_scan_cuda"
NAMES = {"q": "Q", "k": "K", "v": "V", "z": "Z", "adt": "ADT", "dt": "DT", "trap": "Trap", "angles": "Angles", "d": "D"}
NAMES |= {"q_bias": "Q_bias", "k_bias": "K_bias", "mimo_v": "MIMO_V", "mimo_z": "MIMO_Z", "mimo_o": "MIMO_Out"}


@pytest.fixture(autouse=True)
def mamba():
    upstream_tree()
    return import_mamba3()


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("cuts", [(0, 40), (0, 1, 17, 40)], ids=["one document", "three"])
def test_it_is_the_form_that_the_kernels_were_measured_against(groups, cuts, monkeypatch):
    spec = importlib.util.spec_from_file_location("pack05", ROOT / "packs/05_mimo_gqa_backward/reproducer.py")
    pack = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pack)
    monkeypatch.setattr(pack, "HEADS", 8)
    x = problem(40, heads=8, groups=groups, rank=4)
    got = mamba3_mimo_reference(**x, chunk_size=16, rotary_dim_divisor=4, dtype=torch.float64, cu_seqlens=bounds(*cuts))
    want = pack.quadratic(cuts, {name: x[ours] for name, ours in NAMES.items()})
    assert error(got, want) < 1e-10
    weight = torch.randn(want.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pairs = zip(*(torch.autograd.grad(y, list(x.values()), weight) for y in (got, want)), strict=True)
    assert max(error(*pair) for pair in pairs) < 1e-10


def decode_reference(mamba):
    """Upstream's torch decode step, out of a file that imports CUTLASS."""
    path = Path(mamba.__file__).parents[1] / "ops/cute/mamba3/mamba3_step_fn.py"
    wanted = "selective_state_update_fused_ref_v2"
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == wanted]
    scope = {"torch": torch}
    exec(compile(tree, str(path), "exec"), scope)
    return scope[wanted]


@pytest.mark.parametrize("groups", [1, 8])
def test_a_sequence_at_once_is_upstreams_decoding_step_by_step(mamba, groups):
    torch.manual_seed(0)
    mixer = build_mamba3(32, d_state=16, headdim=8, ngroups=groups, rank=2, chunk=8, device="cpu").double()
    core = mixer.mamba
    for parameter in core.parameters():  # the initial values are all alike: they would hide a swapped index
        torch.nn.init.normal_(parameter, std=0.3)
    reference = decode_reference(mamba)

    def step(state, k, v, a, b, c, d, x, dt, trap, up, outproj, state_out, out, z, zproj, **_):
        done, after = reference(state, a, b, c, up, x, zproj, z, dt, k, v, trap, d, outproj, torch.float64)
        out.copy_(done)
        state.copy_(after)

    rotary = sys.modules["mamba_ssm.ops.triton.mamba3.mamba3_mimo_rotary_step"].apply_rotary_qk_inference_reference
    names = {"mamba3_step_fn": step}
    names["apply_rotary_qk_inference_fwd"] = lambda inplace, **k: rotary(**k)
    decode, hidden = rebound(type(core).step, names), torch.randn(20, 32, dtype=torch.float64)
    caches = [torch.zeros(1, 8, 4), torch.zeros(1, 8, 8, 16), torch.zeros(1, 2, 8, 16), torch.zeros(1, 8, 8)]
    caches = [cache.double() for cache in caches]  # angle, state, key, value
    with torch.no_grad():
        want = torch.cat([decode(core, hidden[t : t + 1], *caches)[0] for t in range(20)])
        # the module itself takes decays and angles through fp32
        assert error(mixer(hidden, bounds(0, 20)), want) < 1e-6
        assert error(mixer(hidden, bounds(0, 20, 20)), want) < 1e-6


def test_norm_is_upstreams(mamba):
    reference = sys.modules["mamba_ssm.ops.triton.layernorm_gated"].rms_norm_ref
    for dtype, limit in ((torch.float32, 1e-6), (torch.bfloat16, 2**-8)):
        mixer = build_mamba3(32, d_state=16, headdim=8, ngroups=2, device="cpu", dtype=dtype)
        norm = mixer.mamba.B_norm
        torch.nn.init.normal_(norm.weight)
        x = torch.randn(5, 16).to(dtype)
        assert error(norm(x), reference(x, norm.weight, None, eps=1e-5)) < limit
        assert torch_norm(norm).weight is norm.weight


def test_upstreams_class_and_module_are_left_alone(mamba):
    before = dict(vars(mamba)), dict(vars(mamba.Mamba3))
    build_mamba3(32, d_state=16, headdim=8, ngroups=2, device="cpu")
    assert (dict(vars(mamba)), dict(vars(mamba.Mamba3))) == before
    assert getattr(mamba, KERNEL) is not mamba3_mimo_reference
    assert torch_class(mamba.Mamba3).forward.__code__ is mamba.Mamba3.forward.__code__


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.delitem(sys.modules, "mamba_ssm.modules.mamba3")
    monkeypatch.setitem(sys.modules, "einops", None)
    with pytest.raises(ImportError, match="fix: pip install einops"):
        build_mamba3(32, headdim=8, device="cpu")
    monkeypatch.setitem(sys.modules, "mamba_ssm", None)
    with pytest.raises(ImportError, match="fix: pip install mamba-ssm"):
        build_mamba3(32, headdim=8, device="cpu")


def test_the_extension_that_upstream_imports_first_is_named_with_its_remedy(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {EXTENSION!r}", name=EXTENSION)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"fix: patch .*packs/42_import_without_extensions/fix\.patch"):
        import_mamba3()
