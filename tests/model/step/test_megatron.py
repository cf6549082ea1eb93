"""Megatron's configuration by the chosen paths, and that the network calls what they name."""

import pytest
import tiny

pytestmark = pytest.mark.upstream
FIELDS = (
    "dsa_kernel_backend",
    "moe_grouped_gemm",
    "moe_router_fusion",
    "moe_shared_expert_overlap",
    "gradient_accumulation_fusion",
    "cross_entropy_loss_fusion",
    "cross_entropy_fusion_impl",
)
CPU = ("none", False, False, False, False, False, "native")


def configured(run):
    from model.kinds import catalogue
    from model.kinds.run import Run
    from model.step import megatron

    asked = Run(**run)
    return [getattr(megatron.megatron_config(tiny.SIZE, asked, catalogue.choose(tiny.SIZE, asked)), f) for f in FIELDS]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ({}, CPU),
        ({"paths": {"moe": "grouped_mm"}}, CPU),  # the routers' fused kernels are for GPUs
    ],
)
def test_each_path_sets_its_fields(megatron, run, expected):
    assert tuple(megatron.call(configured, run)) == expected


def test_a_loss_of_branch_dev_alone_is_refused_by_name(megatron):
    """By pack 19, which the released stack has."""
    with pytest.raises(ValueError, match=r"cross_entropy_fusion_impl .* 'linear'"):
        megatron.call(configured, {"paths": {"loss": "linear"}})


def on_gpus(run):
    from model.kinds import catalogue
    from model.kinds.run import Run
    from model.step import megatron

    asked = Run(on_cpu=False, **run)
    return {k: v for k, v in megatron.settings(asked, catalogue.choose(tiny.SIZE, asked)).items() if v}


EXPERTS = {"moe_grouped_gemm": True, "moe_router_fusion": True}
BF16 = {"dsa_kernel_backend": "tilelang", "gradient_accumulation_fusion": True}


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ({"bf16": True}, BF16 | {"moe_router_fusion": True}),
        ({"bf16": True, "expert_parallel": 2}, BF16 | EXPERTS | {"moe_shared_expert_overlap": True}),
        ({}, {"dsa_kernel_backend": "none"} | EXPERTS),
    ],
)
def test_each_path_sets_its_fields_on_gpus(megatron, run, expected):
    """Megatron refuses such a configuration without a GPU, so that only what is handed to it is seen here."""
    assert megatron.call(on_gpus, run) == expected


CALLED = []


def after(network):
    CALLED.append(len(network.decoder.layers))


def called():
    """What is called of a path that installs something: its function, with the network."""
    import dataclasses
    from unittest import mock

    from model.kinds import catalogue

    here = catalogue.PARTS["mla"]
    hooked = dataclasses.replace(here.path("torch"), install=f"{__name__}:after")
    CALLED.clear()
    with mock.patch.dict(catalogue.PARTS, mla=dataclasses.replace(here, paths=(hooked,))):
        tiny.fresh()
    return list(CALLED)


def test_the_network_calls_what_its_paths_name(megatron):
    assert megatron.call(called) == [len(tiny.SIZE.layers)]


def installed(kind, name):
    """The classes and functions of a model's parts after the install of a path that only GPUs take."""
    from model.kinds import catalogue
    from model.kinds.path import called

    model = tiny.fresh()
    called(catalogue.PARTS[kind].path(name).install)(model)
    mamba = model.decoder.layers[2].mixer.mamba
    made = type(mamba.in_proj), type(mamba.out_proj)
    return [f"{cls.__module__}.{cls.__qualname__}" for cls in made], getattr(mamba.out_proj, "accumulates", None)


PLAIN, LINEAR = "torch.nn.modules.linear.Linear", "model.layers.linear"


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("mamba_proj", "bf16_parts", ([f"{LINEAR}.parts.Linear", PLAIN], None)),
        ("mamba_proj", "fp8_parts", ([f"{LINEAR}.parts.Linear", f"{LINEAR}.fp8.Linear"], False)),
        ("wgrad", "fused", ([f"{LINEAR}.wgrad.Linear"] * 2, True)),
    ],
)
def test_a_path_for_gpus_changes_what_it_names(megatron, kind, name, expected):
    assert tuple(megatron.call(installed, kind, name)) == expected
