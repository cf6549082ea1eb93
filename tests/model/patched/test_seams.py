"""What ``model/`` changes upstream at run time: each change rests on the pinned release's code, or is refused."""

import hashlib
import re

import pytest
import toy

from model.families.sizes import SIZES
from model.kinds import catalogue, dsa, ends, mla, moe
from model.kinds.path import Part, Path, Seam
from model.kinds.recurrent import m2rnn, mamba3
from model.kinds.run import Run
from model.patched import overlay, seams, stacks
from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.record.schema import ROOT, load_packs
from reproducers.upstream.store import Store

ON_CPU = {kind: choice.name for kind, choice in catalogue.choose(SIZES["nam56r_tiny"], Run()).items()}
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
    return Seam("toy", upstream, digest, "why")


@pytest.fixture
def tree(tmp_path):
    return toy.write_tree(tmp_path / "tree", {"package/__init__.py": "", "package/module.py": CODE})


# A stack's code without what a seam rests on: no run there can have its paths.
UNFIT = {("released", "linear_loss"), ("newest", "linear_loss"), ("dev", "sparse_kept")}


def roots(name, patches):
    """Of the stack's trees, with those packs, "every" is those that are not validated too; skips where it has none."""
    of = stacks.named(name)
    try:
        packs = overlay.candidates(load_packs(), of) if patches == "every" else overlay.chosen(patches, stack=of)
        built = overlay.build(Store(), packs, "cpu", of)
    except (CannotTestHere, OSError) as lacking:
        pytest.skip(str(lacking))
    return [built.root(tree) for tree in built.trees]


@pytest.fixture(scope="module", params=["released none", "released every", "newest all", "dev all"])
def stack(request):
    """(name, packs, roots) of a stack's trees, without packs and with all of them."""
    name, patches = request.param.split()
    return name, patches, roots(name, patches)


@pytest.fixture(scope="module")
def released():
    """The roots of the default stack with all packs."""
    return roots("released", "all")


@pytest.mark.upstream
@pytest.mark.parametrize("each", catalogue.seams(), ids=lambda each: each.name)
def test_it_rests_on_each_stacks_code_whatever_packs_change(stack, each):
    name, patches, trees = stack
    digest = seams.digest_of(each, trees)
    fits = digest in (each.sha256, *(each.also if patches != "every" else ()))
    assert fits != ((name, each.name) in UNFIT), f"{each.upstream}: {digest}"
    if not fits:
        assert {name for name, path in catalogue.paths().items() if each in path.seams} <= set(seams.lacking(trees))
        with pytest.raises(PatchlaneError, match=f"seam {each.name}"):
            seams.check([each], trees)


@pytest.mark.upstream
def test_the_default_stack_with_all_packs_offers_every_path_but_the_dev_stacks(released):
    """A word that is in no stack's code would take its path from all of them, unseen."""
    assert set(seams.lacking(released)) == {"loss=linear"}


@pytest.mark.upstream
@pytest.mark.parametrize("stack", ["dev all"], indirect=True)
def test_branch_dev_has_no_path_by_tilelangs_sparse_attention(stack):
    _, _, trees = stack
    assert {"dsa=tilelang", "sparse=kept"} <= set(seams.lacking(trees))
    assert "loss=linear" not in seams.lacking(trees)


def applied():
    """In the worker: {seam: whether what it changes is changed}, each applied to the real upstream."""
    import tiny
    import torch

    from model.layers.ends import head
    from model.layers.experts import experts
    from model.layers.linear import wgrad
    from model.layers.mamba3 import reference
    from model.layers.mamba3 import upstream as mamba3_upstream

    model, module = tiny.fresh(), mamba3_upstream.import_mamba3()
    mamba, kernel = model.decoder.layers[2].mixer.mamba, reference.mamba3_mimo_reference
    found = {
        "head": type(model.output_layer) is head.Head,
        "mamba3_torch": type(mamba.B_norm) is torch.nn.RMSNorm
        and type(mamba).forward.__globals__[mamba3_upstream.KERNEL] is kernel
        and module.mamba3_mimo_combined is not kernel,
    }
    weights, hidden = experts.Applied(), torch.ones(2)
    found["weighted_experts"] = hidden * weights.unsqueeze(-1) is hidden
    linear = torch.nn.Linear(2, 2)
    wgrad.enable(torch.nn.Sequential(linear))
    found["mamba3_wgrad"] = type(linear) is wgrad.Linear
    return found


@pytest.mark.upstream
def test_each_is_applied_to_the_real_upstream(megatron):
    pytest.importorskip("triton")
    found = megatron.call(applied)
    assert found == dict.fromkeys(found, True) and set(found) < {each.name for each in catalogue.seams()}


def test_each_is_verified_where_it_acts():
    """By its name in the code: what changes upstream and asks for no check would act on any release."""
    modules = {"mamba3": mamba3, "m2rnn": m2rnn, "mla": mla, "dsa": dsa, "moe": moe, "ends": ends}
    modules["catalogue"] = catalogue
    declared = {
        f"{name}.{constant}": value.name
        for name, module in modules.items()
        for constant, value in vars(module).items()
        if isinstance(value, Seam)
    }
    verified = set()
    for file in (ROOT / "model").rglob("*.py"):
        text = file.read_text()
        alias = re.search(r"from model\.kinds(?:\.\w+)? import (\w+) as kind$", text, re.M)
        for module, constant in re.findall(r"seams\.verify\((\w+)\.(\w+)\)", text):
            verified.add(declared[f"{alias[1] if module == 'kind' else module}.{constant}"])
    assert verified == {each.name for each in catalogue.seams()}


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
    monkeypatch.setattr(seams, "_verified", set())
    seams.verify(seam(text=CODE[CODE.index("    @property") :]))


@pytest.mark.parametrize("upstream", ["package.module:Layer.forward", "package.module:gone", "gone.module:plain"])
def test_a_seam_is_refused_where_upstream_changed(tree, monkeypatch, upstream):
    monkeypatch.syspath_prepend(tree)
    monkeypatch.setattr(seams, "_verified", set())
    with pytest.raises(PatchlaneError, match="seam toy") as caught:
        seams.verify(seam(upstream))
    assert "python -m model.lock check" in caught.value.remedy and "test_seams.py" in caught.value.remedy


def test_a_run_has_the_seams_of_its_paths_alone(monkeypatch):
    part = Part("sparse", "", (Path("ours", seams=(seam(),)), Path("again")))
    monkeypatch.setitem(catalogue.PARTS, "sparse", part)
    assert "toy" in {each.name for each in catalogue.seams(ON_CPU | {"sparse": "ours"})}
    assert "toy" not in {each.name for each in catalogue.seams(ON_CPU)}


def test_what_a_run_applies_is_recorded():
    recorded = {entry["name"]: entry for entry in seams.as_record(catalogue.seams(ON_CPU))}
    assert {"mamba3_torch", "head"} <= set(recorded)
    assert not {"mamba3_rows", "weighted_experts", "mamba3_wgrad"} & set(recorded)
    assert recorded["head"] == {
        "name": "head",
        "upstream": ends.HEAD.upstream,
        "sha256": ends.HEAD.sha256,
        "owner": "ours",
    }


def test_each_is_ours_for_a_reason():
    found = catalogue.seams()
    assert [each.name for each in found if not each.ours] == []
    assert len(found) <= 8


def test_names_are_unique():
    found = catalogue.seams()
    assert len({each.name for each in found}) == len(found)


def test_a_path_lacks_what_its_function_or_word_is_missing(tmp_path):
    rest = {"loss=liger_once", "dsa=tilelang", "sparse=kept", "wgrad=fused"}
    assert set(seams.lacking([tmp_path])) == rest | {"loss=linear"}
    code = "class HybridModel:\n    def __init__(self):\n        {}\n"
    file = "megatron/core/models/hybrid/hybrid_model.py"
    before = toy.write_tree(tmp_path / "before", {file: code.format("pass")})
    after = toy.write_tree(tmp_path / "after", {file: code.format("LinearCrossEntropyModule()")})
    assert "HybridModel.__init__" in seams.lacking([before])["loss=linear"]
    assert set(seams.lacking([after])) == rest
