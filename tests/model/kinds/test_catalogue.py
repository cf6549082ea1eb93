"""Which implementations run: the fastest that works where nothing is asked for, else what is asked for or nothing."""

import logging
from importlib.metadata import PackageNotFoundError

import pytest

from model.families import deepseek_v4
from model.families.nam56r import SIZES
from model.kinds import catalogue
from model.kinds.catalogue import PARTS
from model.kinds.path import Choice
from model.kinds.run import Run
from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.record.schema import ROOT

SIZE = SIZES["nam56r"]
V4 = deepseek_v4.SIZES["v4_tiny"]
ON_GPU = {"on_cpu": False, "bf16": True}
FASTEST = {
    "mamba3": "tilelang",
    "mamba_proj": "bf16_parts",
    "mtp_proj": "bf16",
    "norm": "te",
    "bc_norm": "mamba",
    "m2rnn": "triton_whole",
    "mla": "cudnn",
    "dsa": "tilelang",
    "sparse": "again",
    "moe": "grouped_mm",
    "shared": "after",
    "loss": "liger_once",
    "wgrad": "fused",
}
ROWS = {"sparse": "kept"}
IN_GRAPHS = {"moe": "grouped_fused"}
ON_CPU = {
    "mamba3": "torch",
    "mamba_proj": "bf16",
    "mtp_proj": "bf16",
    "norm": "torch",
    "bc_norm": "torch",
    "m2rnn": "torch",
    "mla": "torch",
    "dsa": "megatron",
    "sparse": "again",
    "moe": "sequential",
    "shared": "after",
    "loss": "torch",
    "wgrad": "added",
}


@pytest.fixture(autouse=True)
def everything_installed(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.6.0")


def missing(name):
    raise PackageNotFoundError(name)


def names(**run):
    return {kind: path.name for kind, path in catalogue.choose(SIZE, Run(**run)).items()}


@pytest.mark.parametrize(
    ("run", "other"),
    [
        ({}, {}),
        ({"expert_parallel": 4}, {"shared": "beside", "moe": "grouped_fused"}),
        ({"cuda_graphs": True}, IN_GRAPHS),
        ({"cuda_graphs": True, "row": 4096}, IN_GRAPHS | {"mamba3": "tilelang_rows"}),
        ({"row": 8192}, ROWS | {"mamba3": "tilelang_rows"}),
        ({"cuda_graphs": True, "row": 4096, "hopper": True}, IN_GRAPHS | {"mamba3": "tilelang_rows"}),
        (
            {"cuda_graphs": True, "row": 4096, "hopper": True, "paths": {"mamba3": "hopper_rows"}},
            IN_GRAPHS | {"mamba3": "hopper_rows"},
        ),
        (  # flash attention and TileLang's kernels are for bf16; the product adds gradients of bf16 weights only
            {"bf16": False},
            {
                "mamba3": "torch",
                "mamba_proj": "bf16",
                "norm": "torch",
                "bc_norm": "mamba",
                "mla": "torch",
                "dsa": "megatron",
                "wgrad": "added",
                "moe": "grouped_fused",
            },
        ),
        ({"row": 4096}, ROWS | {"mamba3": "tilelang_rows"}),
        ({"row": 4096, "hopper": True}, ROWS | {"mamba3": "hopper_rows"}),
        ({"row": 4096 + 16, "hopper": True}, ROWS | {"mamba3": "tilelang_rows"}),  # no pairs of chunks
        ({"row": 4097}, ROWS),  # no whole chunks
    ],
)
def test_what_a_gpu_runs_unasked(run, other):
    assert names(**ON_GPU | run) == FASTEST | other


@pytest.mark.parametrize("run", [{"bf16": True, "expert_parallel": 2}, {"row": 64}])
def test_what_a_cpu_runs_unasked(run):
    assert names(**run) == ON_CPU


def test_a_missing_library_leaves_the_next_path(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("importlib.metadata.version", missing)
    gone = {"m2rnn": "torch"}
    assert names(**ON_GPU) == FASTEST | gone
    assert names(**ON_GPU, cuda_graphs=True) == FASTEST | IN_GRAPHS | gone
    assert names(**ON_GPU, hopper=True, row=4096)["mamba3"] == "tilelang_rows"


def test_cudnn_wants_heads_of_eights():
    size = SIZE.model_copy(update={"attention": SIZE.attention.model_copy(update={"v_dim": 60})})
    assert catalogue.choose(size, Run(**ON_GPU))["mla"].name == "torch"


def test_tritons_interpreter_runs_on_a_cpu(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    interpreted = {"m2rnn": "triton_whole"}
    assert names() == ON_CPU | interpreted


def test_every_path_can_be_asked_for_where_nothing_lacks():
    for kind, part in PARTS.items():
        for path in (path.name for path in part.paths):
            run = {**ON_GPU, "hopper": True, "expert_parallel": 1 if path == "grouped_mm" else 4, "row": 4096}
            size = SIZES["nam56r_siso"] if path == "triton" and kind == "mamba3" else SIZE
            size = size if kind in size.path_parts else V4
            assert catalogue.choose(size, Run(**run, paths={kind: path}))[kind] == Choice(path, "asked for")


def test_siso_has_its_own_kernels():
    size, run = SIZES["nam56r_siso"], {**ON_GPU, "row": 4096}
    assert catalogue.choose(size, Run(**run))["mamba3"].name == "triton"
    assert catalogue.choose(size, Run())["mamba3"].name == "torch"
    with pytest.raises(CannotTestHere, match="SISO"):
        catalogue.choose(size, Run(**run, paths={"mamba3": "tilelang"}))


def test_what_the_stacks_code_cannot_run_is_not_taken():
    gone = {"loss=liger_once": "pack 09 is not in it"}
    found = catalogue.choose(SIZE, Run(**ON_GPU), gone)["loss"]
    assert found == Choice("liger", "liger_once: pack 09 is not in it")
    with pytest.raises(CannotTestHere, match="pack 09 is not in it"):
        catalogue.choose(SIZE, Run(**ON_GPU, paths={"loss": "liger_once"}), gone)


@pytest.mark.parametrize("kind", PARTS)
def test_some_path_of_each_kind_needs_nothing(kind):
    assert () in [path.needs for path in PARTS[kind].paths]


@pytest.mark.parametrize(
    ("kind", "path", "run"),
    [
        ("mamba3", "tilelang", {}),
        ("mamba3", "torch_rows", {}),
        ("mamba3", "tilelang_rows", {**ON_GPU, "row": 4097}),
        ("mamba3", "hopper_rows", {**ON_GPU, "hopper": True, "row": 4096 + 16}),
        ("mamba3", "hopper_rows", {**ON_GPU, "row": 4096}),
        ("m2rnn", "triton_kept", {}),
        ("mla", "cudnn", {}),
        ("shared", "beside", ON_GPU),
        ("wgrad", "fused", {"on_cpu": False}),
    ],
)
def test_nothing_else_is_taken_for_what_was_asked(kind, path, run):
    with pytest.raises(CannotTestHere) as caught:
        names(**run, paths={kind: path})
    assert f"{kind}={path}" in caught.value.what and f"--path {kind}=auto" in caught.value.remedy


@pytest.mark.parametrize(
    ("changed", "run", "triton"),
    [
        ({}, {"hopper": False}, "3.6.0"),
        ({}, {}, "3.7.0"),
        ({"chunk": 32}, {}, "3.6.0"),
        ({"rope_fraction": 1.0}, {}, "3.6.0"),
        ({"groups": 4}, {}, "3.6.0"),  # 28 heads in each
        ({"groups": 28}, {}, "3.6.0"),  # 4
        ({"state": 64}, {}, "3.6.0"),
        ({"head_dim": 128, "groups": 4}, {}, "3.6.0"),
        ({"rank": 2}, {}, "3.6.0"),
    ],
)
def test_hoppers_kernels_want_their_sizes_and_a_gpu_and_triton_that_they_were_tried_with(
    changed, run, triton, monkeypatch
):
    monkeypatch.setattr("importlib.metadata.version", lambda name: triton)
    size = SIZE.model_copy(update={"mamba": SIZE.mamba.model_copy(update=changed)})
    run = Run(**{**ON_GPU, "hopper": True, "row": 4096, **run})
    assert catalogue.choose(size, run)["mamba3"].name == "tilelang_rows"
    taken = "hopper_rows" if triton == "3.6.0" else "tilelang_rows"
    assert names(**ON_GPU, hopper=True, row=4096)["mamba3"] == taken


@pytest.mark.parametrize(
    ("pair", "choices"),
    [
        ("mamba3=tilelang_row", ["auto", *(path.name for path in PARTS["mamba3"].paths)]),
        ("mamba3=", ["auto", *(path.name for path in PARTS["mamba3"].paths)]),
        ("wgrad", ["auto", "fused", "added"]),
        ("attention=flash", PARTS),
    ],
)
def test_a_typo_is_refused_with_the_choices(pair, choices):
    with pytest.raises(PatchlaneError) as caught:
        catalogue.asked(["moe=auto", pair])
    assert all(choice in caught.value.remedy for choice in choices)
    with pytest.raises(PatchlaneError):
        names(paths=dict([pair.partition("=")[::2]]))


def test_an_architecture_has_its_own_parts_alone():
    assert set(catalogue.choose(V4, Run())) == set(V4.path_parts) and "mamba3" not in V4.path_parts
    with pytest.raises(PatchlaneError) as caught:
        catalogue.choose(V4, Run(paths={"mamba3": "torch"}))
    assert "mamba3=torch" in caught.value.what and "csa" in caught.value.remedy
    assert {*V4.path_parts, *SIZE.path_parts} == set(PARTS)


def test_the_reason_names_what_better_paths_lack():
    chosen = catalogue.choose(SIZE, Run())
    assert chosen["moe"].reason.count("GPU") == 2
    assert catalogue.choose(SIZE, Run(**ON_GPU))["moe"] == Choice("grouped_mm", "the best there is")


def test_one_line_a_layer(caplog):
    torch, other = Choice("torch", "asked for"), Choice("cudnn", "the best there is")
    with caplog.at_level(logging.INFO, logger="model.paths"):
        catalogue.announce([("2", "MoE", torch), ("MTP 1", "MLA", other)])
    assert caplog.messages == ["layer 2, MoE: path torch, asked for", "layer MTP 1, MLA: path cudnn, the best there is"]


def test_experts_whose_counts_stay_on_the_device_are_for_one_rank_of_experts():
    asked = {"moe": "grouped_mm"}
    assert names(**ON_GPU, paths=asked)["moe"] == names(paths=asked)["moe"] == "grouped_mm"
    for other in ({"expert_parallel": 2}, {"bf16": False}):
        with pytest.raises(CannotTestHere):
            names(**ON_GPU | other, paths=asked)


def test_deepseek_v4s_kernels_want_a_gpu_bf16_and_heads_of_their_width():
    attention, experts = {"sliding", "csa", "hca"}, {"topk_moe", "hash_moe"}
    kernels = attention | {"streams", "wide_norm"}

    def taken(size=V4, **run):
        found = {kind: path.name for kind, path in catalogue.choose(size, Run(**run)).items()}
        return {kind: found[kind] for kind in kernels | experts}

    every = dict.fromkeys(kernels, "triton") | dict.fromkeys(experts, "grouped_mm")
    none = dict.fromkeys(kernels | experts, "torch")
    assert taken(**ON_GPU) == every and taken() == taken(**ON_GPU | {"bf16": False}) == none
    assert taken(**ON_GPU | {"expert_parallel": 2}) == every | dict.fromkeys(experts, "torch")
    for width in (8, 48):
        odd = V4.model_copy(update={"attention": V4.attention.model_copy(update={"head_dim": width})})
        assert taken(odd, **ON_GPU) == every | dict.fromkeys(attention, "torch")


SITUATIONS = [
    {},
    {"row": 64},
    *(
        ON_GPU | more
        for more in (
            {},
            {"expert_parallel": 4},
            {"cuda_graphs": True, "row": 4096},
            {"row": 4096},
            {"row": 4096, "hopper": True},
            {"row": 4097},
            {"row": 4112},
            {"row": 16384},
            {"bf16": False},
        )
    ),
]


def test_each_path_is_taken_somewhere_or_says_why_one_would_ask_for_it():
    """Unasked on some host, or where another one lacks what some stack, or a pack that is left out, has not."""
    taken = set()
    for size in (*SIZES.values(), V4):
        for run in SITUATIONS:
            for gone in ({}, {name: "not there" for name, path in catalogue.paths().items() if path.code}):
                taken |= {f"{kind}={one.name}" for kind, one in catalogue.choose(size, Run(**run), gone).items()}
    unsaid = {name for name, path in catalogue.paths().items() if not path.option}
    assert unsaid - taken == set()
    assert taken & {name for name, path in catalogue.paths().items() if path.option} == set()  # it is no option then


def test_what_installs_a_path_is_there():
    for path in catalogue.paths().values():
        if place := path.install:
            module, _, function = place.partition(":")
            text = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text()
            assert f"\ndef {function}(" in text, place
