"""What ``model/`` changes upstream at run time: each change rests on the pinned release's code, or is refused."""

import dataclasses
import hashlib

import pytest
import toy

from model.families.sizes import SIZES
from model.kinds.run import Run
from model.layers.common import paths
from model.patched import offers, overlay, seams, stacks
from reproducers.base.errors import CannotTestHere, PatchlaneError
from reproducers.upstream.store import Store

ON_CPU = {kind: path.name for kind, path in paths.choose(SIZES["nam56r_tiny"], Run()).items()}
CODE = """
def plain():
    return 1

class Layer:
    @property
    def forward(self):
        if self:
            def inner():
                return 2
        return inner
"""


def seam(upstream="package.module:Layer.forward", text="    @property\n"):
    digest = hashlib.sha256(text.encode()).hexdigest()
    return seams.Seam("toy", upstream, digest, "why", apply=lambda value: value + 1)


@pytest.fixture
def tree(tmp_path):
    return toy.write_tree(tmp_path / "tree", {"package/__init__.py": "", "package/module.py": CODE})


# A stack's code without what a seam rests on: no run there can have its paths.
UNFIT = {("released", "linear_loss"), ("newest", "linear_loss"), ("dev", "router_balance"), ("dev", "sparse_kept")}


def roots(name, patches):
    """Of the stack's trees, with those packs; skips where they cannot be had."""
    of = stacks.named(name)
    try:
        built = overlay.build(Store(), overlay.chosen(patches, stack=of), "cpu", of)
    except (CannotTestHere, OSError) as lacking:
        pytest.skip(str(lacking))
    return [built.root(tree) for tree in built.trees]


@pytest.fixture(scope="module", params=["released none", "released all", "newest all", "dev all"])
def stack(request):
    """(name, roots) of a stack's trees, without packs and with all of them."""
    name, patches = request.param.split()
    return name, roots(name, patches)


@pytest.fixture(scope="module")
def released():
    """The roots of the default stack with all packs."""
    return roots("released", "all")


@pytest.mark.upstream
@pytest.mark.parametrize("each", seams.SEAMS, ids=lambda each: each.name)
def test_it_rests_on_each_stacks_code_whatever_packs_change(stack, each):
    name, trees = stack
    fits = each.digest(trees) in (each.sha256, *(each.also if name != "released" else ()))
    assert fits != ((name, each.name) in UNFIT), f"{each.upstream}: {each.digest(trees)}"
    if not fits:
        assert {f"{kind}={path}" for kind, of in each.paths.items() for path in of} <= set(offers.lacking(trees))
        with pytest.raises(PatchlaneError, match=f"seam {each.name}"):
            each.check(trees)


@pytest.mark.upstream
def test_the_default_stack_with_all_packs_offers_every_path_but_the_dev_stacks(released):
    """A word that is in no stack's code would take its path from all of them, unseen."""
    assert set(offers.lacking(released)) == {"loss=linear"}


@pytest.mark.upstream
@pytest.mark.parametrize("stack", ["dev all"], indirect=True)
def test_branch_dev_has_no_path_by_tilelangs_sparse_attention(stack):
    _, trees = stack
    assert {"dsa=tilelang", "sparse=kept"} <= set(offers.lacking(trees))
    assert "loss=linear" not in offers.lacking(trees)


def applied():
    """In the worker: {seam: whether what it changes is changed}, each applied to the real upstream."""
    import functools
    import sys
    from types import SimpleNamespace

    import tiny
    import torch
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.models.hybrid import hybrid_block
    from megatron.core.optimizer import clip_grads
    from megatron.core.tensor_parallel import layers
    from megatron.core.transformer.experimental_attention_variant import dsa
    from megatron.core.transformer.experimental_attention_variant.ops import tilelang_dsa, triton_indexer
    from megatron.core.transformer.multi_latent_attention import MLASelfAttention

    from model.layers import head
    from model.layers.common import norm
    from model.layers.experts import wgrad
    from model.layers.mamba3 import reference
    from model.layers.mamba3 import upstream as mamba3_upstream

    model, mamba3 = tiny.fresh(), mamba3_upstream.import_mamba3()
    found = {
        "no_peft": sys.modules["peft"] is None,
        "bare_mamba": not hasattr(sys.modules["mamba_ssm"], "__version__"),
        "final_norm": hybrid_block.TENorm is norm.RMSNorm and type(model.decoder.final_norm) is norm.RMSNorm,
        "head": type(model.output_layer) is head.Head,
        "router_state": all(b._keep_fp32 for n, b in model.named_buffers() if n.endswith("router.expert_bias")),
        "mamba3_norm": type(model.decoder.layers[2].mixer.mamba.B_norm) is torch.nn.RMSNorm,
    }
    kernel = reference.mamba3_mimo_reference
    for name, change in (("mamba3_torch", seams.MAMBA3_TORCH), ("mamba3_rows", seams.MAMBA3_ROWS)):
        bound = change(mamba3.Mamba3.forward, {mamba3_upstream.KERNEL: kernel})
        found[name] = bound.__globals__[mamba3_upstream.KERNEL] is kernel is not mamba3.mamba3_mimo_combined
    scope = {"torch": torch, "mamba_mimo_bwd_combined": None}  # its module imports TileLang
    exec("from __future__ import annotations\n" + seams.source(seams.MAMBA3_BLOCKS.upstream, sys.path), scope)
    bound = seams.MAMBA3_BLOCKS(scope["_Mamba3Function"].backward, {"mamba_mimo_bwd_combined": print})
    found["mamba3_blocks"] = bound.__globals__["mamba_mimo_bwd_combined"] is print
    whole = dsa.FusedDSAIndexerLoss
    with seams.INDEXER_ROWS(lambda loss: (loss, "rows")):
        inside = dsa.FusedDSAIndexerLoss
    found["indexer_rows"] = (inside, dsa.FusedDSAIndexerLoss) == ((whole, "rows"), whole)
    with seams.SPARSE_KEPT("ours"):
        found["sparse_kept"] = tilelang_dsa.SparseMLA == "ours"
    bound = seams.INDEXER_KERNELS(triton_indexer.attention_target, {"_key_bounds": print})
    found["indexer_kernels"] = bound.__globals__["_key_bounds"] is print is not triton_indexer._key_bounds
    of_model = SimpleNamespace(apply_rope_fusion=False, rope_type="rope", num_attention_heads=3)
    layer = type("Layer", (), {"get_query_key_value_tensors": MLASelfAttention.get_query_key_value_tensors})()
    layer.config, makes = of_model, type(layer).get_query_key_value_tensors
    seams.FUSED_MLA(layer, "ours", print)
    seen = layer.config.apply_rope_fusion, layer.config.rope_type, layer.rotary_pos_emb, of_model.apply_rope_fusion
    ours = layer.get_query_key_value_tensors.__func__
    names = [one.__globals__["fused_apply_mla_rope_for_q"] for one in (ours, makes)]
    found["fused_mla"] = seen == (True, "yarn", "ours", False) and names[0] is print is not names[1]
    for change in (seams.WHOLE_ABSORBED, seams.WHOLE_INDEXER):
        linear = torch.nn.Linear(2, 2)
        change(linear, wgrad.Linear)
        found[change.name] = type(linear) is wgrad.Linear
    weights, hidden = seams.WEIGHTED_EXPERTS(), torch.ones(2)
    found["weighted_experts"] = hidden * weights.unsqueeze(-1) is hidden
    seams.APEX_WGRAD(print)
    found["apex_wgrad"] = layers.fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32 is print
    before = clip_grads.multi_tensor_scale_tensor_impl
    seams.LATE_CLIP(print)
    found["late_clip"] = clip_grads.multi_tensor_scale_tensor_impl is print is not before
    clip_grads.multi_tensor_scale_tensor_impl = before
    for change, name in (
        (seams.ROTARY, "_apply_rotary_pos_emb_bshd"),
        (seams.ROTARY_TABLES, "_apply_rotary_pos_emb_thd"),
    ):
        before = getattr(rope_utils, name)
        change(lambda upstream: functools.partial(upstream))
        found[change.name] = getattr(rope_utils, name).func is before
        setattr(rope_utils, name, before)
    router = torch.nn.Module()
    seams.ROUTER_GATE(router, print)
    found["router_gate"] = router.gating is print
    router._apply_packed_seq_aux_loss = "theirs"
    seams.ROUTER_BALANCE(router, lambda method: (method, "ours"))
    found["router_balance"] = router._apply_packed_seq_aux_loss == ("theirs", "ours")
    linear = torch.nn.Linear(2, 2)
    seams.MAMBA3_WGRAD(linear, wgrad.Linear)
    found["mamba3_wgrad"] = type(linear) is wgrad.Linear
    filesystem_async._results_queue = None
    seams.CHECKPOINT_QUEUE()
    found["checkpoint_queue"] = (
        filesystem_async.get_write_results_queue() is filesystem_async._results_queue is not None
    )
    return found


@pytest.mark.upstream
def test_each_is_applied_to_the_real_upstream(megatron):
    here = [each.name for each in seams.SEAMS if ("released", each.name) not in UNFIT]
    assert megatron.call(applied) == dict.fromkeys(here, True)


@pytest.mark.parametrize(
    ("upstream", "lines"),
    [
        ("package.module:plain", "def plain():\n    return 1\n"),
        ("package.module:Layer.forward", CODE[CODE.index("    @property") :]),
        ("package.module:Layer.forward.inner", "            def inner():\n                return 2\n"),
        ("package.module", CODE),
        ("package", ""),
        ("package.module:Layer.backward", None),
        ("package.other:plain", None),
    ],
)
def test_the_source_is_found_without_importing(tree, upstream, lines):
    assert seams.source(upstream, [tree.parent, tree]) == lines


def test_a_seam_acts_on_the_code_that_it_was_written_for(tree, monkeypatch):
    monkeypatch.syspath_prepend(tree)
    monkeypatch.setattr(seams, "_checked", set())
    assert seam(text=CODE[CODE.index("    @property") :])(1) == 2


@pytest.mark.parametrize("upstream", ["package.module:Layer.forward", "package.module:gone", "gone.module:plain"])
def test_a_seam_is_refused_where_upstream_changed(tree, monkeypatch, upstream):
    monkeypatch.syspath_prepend(tree)
    monkeypatch.setattr(seams, "_checked", set())
    with pytest.raises(PatchlaneError, match="seam toy") as caught:
        seam(upstream)(1)
    assert "python -m model.lock check" in caught.value.remedy and "test_seams.py" in caught.value.remedy


def test_a_run_is_refused_before_it_starts_for_the_seams_of_its_paths_alone(tree, monkeypatch):
    rows = dataclasses.replace(seam(), paths={"indexer": ("rows",)})
    monkeypatch.setattr(seams, "SEAMS", (rows,))
    seams.check(ON_CPU, [tree])
    with pytest.raises(PatchlaneError):
        seams.check(ON_CPU | {"indexer": "rows"}, [tree])


def test_what_a_run_applies_is_recorded():
    recorded = {entry["name"]: entry for entry in seams.as_record(ON_CPU)}
    assert {"mamba3_torch", "head", "checkpoint_queue"} <= set(recorded)
    assert not {"mamba3_rows", "indexer_rows", "weighted_experts", "apex_wgrad"} & set(recorded)
    assert recorded["head"] == {
        "name": "head",
        "upstream": seams.HEAD.upstream,
        "sha256": seams.HEAD.sha256,
        "owner": "ours",
    }


def test_names_are_unique_and_paths_are_known():
    assert len({each.name for each in seams.SEAMS}) == len(seams.SEAMS)
    known = {kind: set(of.paths) for kind, of in paths.KINDS.items()} | {"reads": {"late", "at once"}}
    for each in seams.SEAMS:
        assert all(set(names) <= known[kind] for kind, names in each.paths.items()), each.name
