"""The profile window, and the report on synthetic GPU kernels and on a CPU's operators."""

import gc
import gzip
import json
import logging
import re
import time
from types import SimpleNamespace

import pytest
import torch
from torch.autograd.profiler_util import FunctionEvent

from model.definition.memory import Layout
from model.families.sizes import SIZES
from model.kinds.catalogue import PARTS
from model.profile import profiling
from model.profile.bottlenecks import Profile, RankTime, Span, analyse, markdown
from model.profile.ceilings import Ceilings, Copy, Product
from model.profile.kernel_kinds import RULES, kind
from model.profile.profiling import BETWEEN, DATA, REST, Window, gpu_spans
from model.profile.work import Share, between, of
from reproducers.record.schema import ROOT

NAMES = {
    "Mamba-3 MIMO fwd": "mamba_mimo_fwd_kernel_kernel",
    "Mamba-3 MIMO bwd_fwd": "mamba_mimo_bwd_fwd_kernel_kernel",
    "Mamba-3 MIMO bwd_bwd": "mamba_mimo_bwd_bwd_kernel_kernel",
    "Mamba-3 MIMO backward by blocks": "mimo_carry_kernel",
    "Mamba-3 other": "bwd_dadt_cumsum_fused_kernel",
    "M²RNN": "m2rnn_backward",
    "NCCL all-reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "NCCL all-gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "NCCL reduce-scatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "NCCL all-to-all, send and receive": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "NCCL broadcast and other": "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "memcpy": "Memcpy DtoD (Device -> Device)",
    "memset": "Memset (Device)",
    "sparse MLA": "sparse_mla_bwd_kernel_kernel",
    "DSA main_kernel (sparse MLA forward, indexer loss)": "main_kernel",
    "indexer and top-k": "tl_indexer_fwd_kernel_kernel",
    "cross entropy": "liger_cross_entropy_kernel",
    "V4 attention": "key_gradients",
    "V4 indexer": "entry_gradients",
    "V4 compressors": "pooled_gradients",
    "hyper-connections": "balanced_gradients",
    "norms": "normed_gradients",
    "experts' activation": "weighted_swiglu_backward",
    "optimizer": "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>(float)",
    "grouped GEMM": "void cutlass::device_kernel<GemmUniversal<cutlass::gemm::GroupProblemShape<int>>>(Params)",
    "attention": "void cutlass::device_kernel<flash::FlashAttnFwdSm90<float>>(Params)",
    "GEMM": "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
    "convolution": "void causal_conv1d_fwd_kernel<Traits>(ConvParamsBase)",
    "norm": "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<Traits>(Params)",
    "reduction": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
    "routing, sorting and indexing": "void at::native::index_elementwise_kernel<128, 4>(long)",
    "elementwise": "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
    "other": "a_kernel_of_ones_own",
}


def test_every_kernel_of_mamba3_is_counted_as_its_own_kind():
    files = (ROOT / "model" / "layers" / "mamba3").rglob("*.py")
    kernels = {name for file in files for name in re.findall(r"^def (mimo_\w+)\(\n", file.read_text(), re.MULTILINE)}
    assert len(kernels) >= 9
    assert {name: kind(name) for name in kernels if not kind(name).startswith("Mamba-3 MIMO")} == {}
    added = re.findall(r"^\+def (mimo_\w+_kernel)\(", next((ROOT / "packs").glob("53_*/fix.patch")).read_text(), re.M)
    assert {kind(name) for name in added} == {"Mamba-3 MIMO backward by blocks"} and len(added) == 6
    upstreams = PARTS["mamba3"].path("tilelang_rows").kernels["Mamba-3 MIMO backward by blocks"]
    assert [name for name in added if not re.search(upstreams, name)] == []


@pytest.mark.parametrize(("expected", "name"), NAMES.items())
def test_kinds(expected, name):
    assert kind(name) == expected


@pytest.mark.parametrize(
    ("expected", "name"),
    [
        ("indexer and top-k", "_attention_lse_kernel"),  # pack 12's, which other rules would take for attention
        ("indexer and top-k", "_grad_k_kernel"),
        *(("indexer and top-k", f"_{what}_kernel") for what in ("valid_keys", "index_scores", "kl")),
        ("elementwise", "weighted_gelu_backward"),
        ("elementwise", "add_used_kernel"),  # gradients of the experts that had tokens
        *(
            ("elementwise", f"_{what}_kernel") for what in ("rotate", "key_value", "grad_key_value")
        ),  # packs 48's and 54's
        ("norm", "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float>(long)"),
        ("routing, sorting and indexing", "_row_id_map_pass_3_kernel"),
    ],
)
def test_kinds_of_names_that_mislead(expected, name):
    assert kind(name) == expected


def test_every_rule_has_a_name_that_shows_it():
    assert set(RULES) | {"other"} == set(NAMES)


def two_steps():
    """Microseconds of two steps of 100 each: GEMM 20 + 20, all-to-all half beside it, Mamba 30, a gap, a copy."""
    spans = []
    for t in (0, 100):
        spans += [
            Span(NAMES["GEMM"], t + 0, t + 20),
            Span("nvjet_other", t + 20, t + 40),
            Span(NAMES["NCCL all-to-all, send and receive"], t + 30, t + 50),
            Span(NAMES["Mamba-3 MIMO fwd"], t + 50, t + 80),
            Span(NAMES["memcpy"], t + 85, t + 90),
        ]
    return spans


def profiled(**changed):
    how = {"device": "NVIDIA H200", "first_step": 7, "steps": 2, "seconds": 200e-6, "before": [90e-6, 80e-6, 400e-6]}
    return analyse(two_steps(), kind, **(how | changed))


def test_where_the_time_of_a_step_goes():
    p = profiled()
    assert p.step_seconds == pytest.approx(100e-6)
    assert [(row.name, round(row.seconds * 1e6), row.calls) for row in p.kinds] == [
        ("GEMM", 40, 2),
        ("Mamba-3 MIMO fwd", 30, 1),
        ("NCCL all-to-all, send and receive", 20, 1),
        ("memcpy", 5, 1),
    ]
    assert [row.share for row in p.kinds] == pytest.approx([0.4, 0.3, 0.2, 0.05])
    assert p.top[0].name == NAMES["Mamba-3 MIMO fwd"] and p.top[1].kind == "GEMM"
    assert p.busy == pytest.approx(85e-6) and p.idle == pytest.approx(15e-6)
    assert p.longest_gap == pytest.approx(10e-6)
    assert p.exposed_communication == pytest.approx(10e-6)
    assert p.seconds_before == 90e-6 and p.overhead == pytest.approx(1 / 9)


def test_only_the_costliest_sixty_are_named():
    spans = [Span(f"kernel_{i}", i, i + 1 + i / 100) for i in range(70)]
    p = analyse(spans, kind, device="GPU", first_step=1, steps=1, seconds=1.0)
    assert [row.name for row in p.top] == [f"kernel_{i}" for i in range(69, 9, -1)]


def test_the_report_for_people():
    text = markdown(profiled())
    assert "steps 7–8 on NVIDIA H200" in text
    assert all(figure in text for figure in ("0.10 ms", "0.09 ms", "(median of 3)", "+11.1%", "(85.0%)", "0.01 ms"))
    assert "| GEMM | 0.040 | 40.0% | 2 |" in text and "| nvjet_other | 0.020 | 20.0% | 1 | GEMM |" in text
    assert "median of" not in markdown(profiled(before=[]))


def test_what_each_rank_did_is_told_of_several():
    own = profiled().own
    assert own.computing == pytest.approx(75e-6) and own.communicating == pytest.approx(10e-6)
    assert own.idle == pytest.approx(15e-6)
    slow = RankTime(computing=0.085, communicating=0.0, idle=0.015)
    text = markdown(profiled().model_copy(update={"ranks": [own, slow]}))
    assert "| 0 | 0.1 | 0.0 | 0.0 |" in text and "| 1 | 85.0 | 0.0 | 15.0 |" in text
    assert "| rank |" in text and "rank" not in markdown(profiled().model_copy(update={"ranks": [own]}))


def test_annotations_and_the_host_are_no_kernels():
    def event(name, device, annotation=False):
        spot = SimpleNamespace(start=1.0, end=3.0)
        device_type = getattr(torch.autograd.DeviceType, device)
        return SimpleNamespace(name=name, device_type=device_type, is_user_annotation=annotation, time_range=spot)

    events = [event("k", "CUDA"), event("step 3", "CUDA", True), event("aten::mm", "CPU")]
    assert gpu_spans(events) == [Span("k", 1.0, 3.0)]


@pytest.fixture
def train(tmp_path):
    def steps(window, last):
        weight = torch.randn(512, 512, requires_grad=True)
        for number in range(1, last + 1):
            with window.step(number):
                (weight @ weight).sum().backward()
                time.sleep(0.005)

    return steps


def test_a_window_on_a_cpu(tmp_path, train):
    window = Window(3, 5, tmp_path)
    train(window, 7)
    p = Profile.model_validate_json((tmp_path / "profile.json").read_bytes())
    assert p == window.result and (p.device, p.first_step, p.steps, p.steps_before) == ("CPU", 3, 3, 1)
    mm = next(row for row in p.kinds if row.name == "aten::mm")
    assert mm.calls == 3  # one forward, two backward
    between = next(row for row in p.kinds if row.name == BETWEEN)
    assert between.seconds >= 0.005 and between.calls == 1
    assert p.step_seconds >= 0.005 and 0.5 < sum(row.share for row in p.kinds) < 1.001
    assert p.busy is None and p.idle is None
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    named = {event.get("name") for event in trace["traceEvents"]}
    assert {"step 3", "step 4", "step 5", "aten::mm"} <= named and not {"step 2", "step 6"} & named
    assert "| operator |" in (tmp_path / "profile.md").read_text()


def test_a_run_that_starts_or_ends_inside_the_window(tmp_path):
    late = Window(3, 5, tmp_path)
    for number in (4, 5):
        with late.step(number):
            torch.ones(2)
    assert (late.result.first_step, late.result.steps, late.result.seconds_before) == (4, 2, None)
    past = Window(3, 5, tmp_path / "past")
    with past.step(6):
        torch.ones(2)
    assert past.result is None and not (tmp_path / "past").exists()


def test_a_step_that_fails_keeps_its_error(tmp_path):
    window = Window(1, 2, tmp_path)
    with pytest.raises(ZeroDivisionError), window.step(1):
        1 / 0  # noqa: B018
    assert window.result is None and window._profiler is None


def test_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profiling, "write_atomic", full)
    window = Window(1, 1, tmp_path)
    with caplog.at_level(logging.WARNING), window.step(1):
        torch.ones(2)
    assert window.result is not None and [record.args[0] for record in caplog.records] == [tmp_path]


def test_a_rank_that_is_not_the_first_measures_and_writes_nothing(tmp_path, train):
    window = Window(1, 2, tmp_path / "run", writes=False)
    train(window, 2)
    assert window.result.steps == 2 and not (tmp_path / "run").exists()


CEILINGS = Ceilings(
    products=[Product(rows=1000, inner=1000, columns=1000, seconds=2e-6)], copied=Copy(size=2**30, seconds=0.0005)
)
TINY = Share(SIZES["nam56r_tiny"], Layout(data=2))


@pytest.fixture
def a_gpu(monkeypatch):
    """A GPU whose kernels and ceilings are planted; the activities that profilers were asked for."""
    asked, profile = [], torch.profiler.profile
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: asked.append(activities) or profile())
    monkeypatch.setattr(profiling, "gpu_spans", lambda _: two_steps())
    monkeypatch.setattr(profiling.ceilings, "measure", lambda: CEILINGS)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    return asked


def test_ranks_times_are_gathered(tmp_path, a_gpu):
    met = []

    def gather(own):
        met.append(own)
        return [own, own]

    window = Window(1, 2, tmp_path, cuda=True, gather=gather, share=TINY)
    for number in (1, 2):
        with window.step(number):
            window.took(0.25, {"forward": (0.001, 0.5), "update": (0.002, 0.25)}, [[0, 5, 105]])
    rank, again = window.result.ranks
    assert met == [None, rank] and again == rank  # ranks meet before they measure, then tell
    assert rank.computing == window.result.own.computing and rank.ceilings == CEILINGS
    assert [(p.name, p.host, p.device) for p in rank.phases[:3]] == [
        (DATA, 0.25, None),
        ("forward", 0.001, 0.5),
        ("update", 0.002, 0.25),
    ]
    (gemm,) = [limit for limit in rank.limits if limit.name == "matrix products"]
    (counted,) = [work for work in of(TINY, between([0, 5, 105])) if work.name == "matrix products"]
    assert gemm.seconds == pytest.approx(40e-6) and gemm.least == pytest.approx(counted.flops / 1e15)
    kept = Profile.model_validate_json((tmp_path / "profile.json").read_bytes())
    assert kept.ranks == window.result.ranks
    text = (tmp_path / "profile.md").read_text()
    assert "| rank |" in text and "| 1.0, 500.0 |" in text and "| 1000.0 |" in text and "| matrix products |" in text


@pytest.mark.long
def test_of_the_steps_before_kernels_alone_are_traced(tmp_path, a_gpu):
    """They are busy for 170 of the second one's microseconds; no time of theirs is one of those before the window."""
    window = Window(5, 5, tmp_path, cuda=True)
    opened = []
    for number in range(1, 7):
        opened.append(window.opens(number))
        with window.step(number):
            time.sleep(0.001)
    kernels, whole = a_gpu
    assert kernels == [torch.profiler.ProfilerActivity.CUDA] and torch.profiler.ProfilerActivity.CPU in whole
    assert opened == [False, False, True, False, False, False]
    (rank,) = window.result.ranks
    alone = rank.kernels_alone
    assert alone.step == 4 and alone.seconds - alone.idle == pytest.approx(170e-6)
    assert window.result.steps_before == 1
    assert f"of {alone.seconds * 1e3:.2f} (" in (tmp_path / "profile.md").read_text()


@pytest.mark.long
@pytest.mark.parametrize(("since", "idle"), [(90e-6, 5e-6), (105e-6, 15e-6), (115e-6, 20e-6)])
def test_a_step_launched_before_the_last_had_ended_idles_since_that_ended(tmp_path, a_gpu, since, idle):
    """The trace ends at 190 microseconds; its kernels leave 80 to 85 and 90 to 100 of each hundred."""
    window = Window(3, 3, tmp_path, cuda=True)
    for number in (1, 2, 3):
        with window.step(number):
            window.took(0.0, {}, [], since if number == 2 else None)
    alone = window.result.ranks[0].kernels_alone
    assert (alone.step, alone.seconds, alone.idle) == (2, since, pytest.approx(idle))


@pytest.mark.long
def test_a_window_after_one_step_has_its_kernels_traced(tmp_path, a_gpu):
    window = Window(2, 2, tmp_path, cuda=True)
    for number in (1, 2):
        with window.step(number):
            window.took(0.0, {}, [])
    assert window.result.ranks[0].kernels_alone.step == 1 and len(a_gpu) == 2


@pytest.mark.long
def test_a_trace_without_kernels_measures_no_idleness(tmp_path, a_gpu, monkeypatch):
    monkeypatch.setattr(profiling, "gpu_spans", lambda _: [])
    window = Window(2, 2, tmp_path, cuda=True)
    for number in (1, 2):
        with window.step(number):
            pass
    assert window.result.ranks[0].kernels_alone is None and window.result.idle is None
    assert "idle" not in (tmp_path / "profile.md").read_text()


@pytest.mark.long
def test_a_traced_step_that_fails_keeps_its_error(tmp_path, a_gpu):
    window = Window(2, 2, tmp_path, cuda=True)
    with pytest.raises(ZeroDivisionError), window.step(1):
        _ = 1 / 0
    for _ in range(2):
        with window.step(1):  # nothing is left running
            pass


def test_a_run_that_is_not_of_bf16_has_no_limits(tmp_path, a_gpu):
    window = Window(1, 1, tmp_path, cuda=True)
    with window.step(1):
        window.took(0.5, {}, [[0, 5]])
    (rank,) = window.result.ranks
    assert rank.computing is not None and rank.ceilings.skipped and not rank.ceilings.products and not rank.limits
    assert "matrix products" not in (tmp_path / "profile.md").read_text()


def test_phases_of_a_rank(tmp_path):
    """All else is what the window took beyond its phases; data of the first step are read before it."""
    window = Window(2, 3, tmp_path)
    for number in (1, 2, 3):
        with window.step(number):
            window.took(100.0 if number < 3 else 0.5, {"forward": (float(number), None)}, [])
    data, forward, rest = window._mean_phases(step_seconds=5.0, steps=2)
    assert (data.host, forward.host, rest.name, rest.host) == (50.25, 2.5, REST, 5.0 - 2.5 - 0.25)
    assert window.result.ranks[0].phases[1] == forward and rest.device is None
    window._phases["forward"] = [(1.0, 3.0), (1.0, 4.0)]
    assert [phase.device for phase in window._mean_phases(5.0, 2)] == [None, 3.5, 1.5]


def test_no_event_outlives_the_window(tmp_path, train):
    """They hold each other, and a rank that drops some million objects in a later step keeps the others waiting."""
    gc.disable()
    try:
        window = Window(1, 1, tmp_path)
        train(window, 1)
        left = [kept for kept in gc.get_objects() if type(kept) is FunctionEvent]
    finally:
        gc.enable()
    assert window.result is not None and not left


@pytest.mark.parametrize(("first", "last"), [(0, 3), (4, 3)])
def test_an_empty_window_is_refused(tmp_path, first, last):
    with pytest.raises(ValueError, match=f"{first} to {last}"):
        Window(first, last, tmp_path)
