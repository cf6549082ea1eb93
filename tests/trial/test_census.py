"""What a fix changes beside the bug, kind by kind: the toy's own code as it is against the same with one mistake."""

import collections
import contextlib
import queue
import sys
import threading
import time
import warnings

import counting
import pytest
import torch
from tiers import sampled

from reproducers.probe.arm.census import modes, public, state, values
from reproducers.probe.arm.census.again import Again
from reproducers.probe.arm.census.calls import Calls, Heard
from reproducers.probe.arm.census.probe import CensusProbe
from reproducers.record.schema import Meant
from reproducers.trial import census

SUM = "    return torch.where(inside, x, 0.0).sum(-1) * scale\n"
FORWARD = "        return Square.apply(x) * self.weight\n"
KEPT = "KEPT = {}\n"
MEMBER = '        self.register_buffer("count"'
COUNT = MEMBER + ", torch.zeros((), dtype=torch.int64), persistent=False)\n"
MARK = "        self.weight.sharded = True\n"
KEEPS = "        ctx.save_for_backward(x)\n"
READS = "        (x,) = ctx.saved_tensors\n"
TWICE = "        return 2 * x * grad\n"
BACKWARD = "    def backward(ctx, grad):\n"


def use(toy):
    x = torch.arange(12.0).view(3, 4)
    toy.sums(x, torch.tensor([1, 4, 2]))
    toy.sums(x, torch.tensor([1, 4, 2]), scale=2.0)
    layer = toy.Layer(4)
    layer(x.clone().requires_grad_())


@pytest.fixture(autouse=True)
def restored():
    """What the wrong ones leave changed."""
    with warnings.catch_warnings():
        yield
    torch.set_default_dtype(torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return counting.census(tmp_path_factory.mktemp("pristine"), counting.SOURCE, use)


@pytest.fixture
def strayed(tmp_path, pristine):
    def of(old, new):
        assert old in counting.SOURCE
        return census.compare(pristine, counting.census(tmp_path, counting.SOURCE.replace(old, new, 1), use, pristine))

    return of


WRONG = [
    ("leaves changed", SUM, "    torch.manual_seed(7)\n" + SUM),
    ("leaves changed", SUM, "    torch.set_default_dtype(torch.float64)\n" + SUM),
    ("leaves changed", SUM, "    warnings.simplefilter('ignore')\n" + SUM),
    ("leaves changed", KEPT, KEPT + "torch.backends.cuda.matmul.allow_tf32 = True\n"),
    ("says", KEPT, KEPT + "warnings.warn('slow', stacklevel=1)\n"),
    ("changes of its arguments", SUM, "    bounds.clamp_(max=x.shape[-1])\n    bounds.add_(0)\n    x.mul_(2)\n" + SUM),
    ("changes of its arguments", FORWARD, "        x.last = x.shape\n" + FORWARD),
    ("changes of its arguments", FORWARD, "        self.register_buffer('last', x.detach())\n" + FORWARD),
    ("changes of its arguments", FORWARD, "        self.count = self.count + 0\n" + FORWARD),
    ("says", SUM, "    logger.warning('slow')\n" + SUM),
    ("says", SUM, "    warnings.warn('slow', stacklevel=1)\n" + SUM),
    ("ends", SUM, SUM.replace("* scale", "* scale + bounds.double()")),
    ("gradients", FORWARD, FORWARD.replace("self.weight", "self.weight.detach()")),
    ("state dict", MEMBER, MEMBER.replace("count", "other") + ", torch.zeros(1))\n" + MEMBER),
    ("shares memory with", SUM, "    if scale == 1.0:\n        return x.T.view(4, 3)[0, :]\n" + SUM),
    ("under no_grad", FORWARD, "        if not torch.is_grad_enabled():\n            return x\n" + FORWARD),
    (
        "in a thread",
        SUM,
        "    import threading\n\n    if threading.current_thread() is not threading.main_thread():\n"
        "        return None\n" + SUM,
    ),
    (
        "a second time",
        FORWARD,
        "        if hasattr(self, 'before'):\n            return x\n        self.before = 1\n" + FORWARD,
    ),
    ("of a pickled copy", MEMBER, "        self.how = lambda: 0\n" + MEMBER),
    (
        "after its tensors change, under no_grad",
        FORWARD,
        "        if not torch.is_grad_enabled():\n"
        "            self.held = getattr(self, 'held', self.weight.detach().clone())\n"
        "            return x * x * self.held\n" + FORWARD,
    ),
    ("by names", "def sums(x, bounds,", "def sums(x, bounds, /,"),
    (
        "backward twice",
        "        return 2 * x * grad\n",
        "        ctx.times = getattr(ctx, 'times', 0) + 1\n        return 2 * x * grad * ctx.times\n",
    ),
    ("host waits", SUM, "    if bounds.max() > x.shape[-1]:\n        raise ValueError\n" + SUM),
    ("tensors alive after backward", "        return x * x\n", "        ctx.more = x * 3\n        return x * x\n"),
    ("in bfloat16", SUM, "    if x.dtype is torch.bfloat16:\n        return x.sum(-1)\n" + SUM),
    ("with integers in int32", SUM, "    if bounds.dtype is torch.int32:\n        return x.sum(-1)\n" + SUM),
    ("with strided inputs", SUM, "    x = x.as_strided(x.shape, (x.shape[-1], 1))\n" + SUM),
    (
        "with inputs in wider rows",
        SUM,
        "    if x.stride(-1) == 1:\n        x = x.as_strided(x.shape, (x.shape[-1], 1))\n" + SUM,
    ),
    (
        "where an operator fails",
        SUM,
        f"    try:\n    {SUM}    except RuntimeError:\n        return x.sum(-1)\n",
    ),
    (
        "where an operator fails",
        FORWARD,
        "        assert not hasattr(self, '_busy')\n        self._busy = 1\n        x = Square.apply(x) * self.weight\n"
        "        del self._busy\n        return x\n",
    ),
    ("leaves changed where flags are otherwise", SUM, "    torch.set_float32_matmul_precision('highest')\n" + SUM),
    ("inputs whose NaN nothing shows", SUM, "    x = x.nan_to_num()\n" + SUM),
    ("with inputs of a subclass", SUM, "    if type(x) is not torch.Tensor:\n        return x.sum(-1)\n" + SUM),
    ("of zeros", SUM, SUM.replace("* scale", "* (x.mean() / x.mean())")),
    ("3 made 0", SUM, "    bounds = bounds - bounds.min() + bounds.min()\n" + SUM),
    ("largest tensor with 16 for 4", SUM, "    torch.zeros(x.shape[-1], x.shape[-1], x.shape[-1])\n" + SUM),
    (
        "peak with 16 for 4",
        SUM,
        "    held = [torch.zeros(x.shape[-1]) for _ in range(4 * x.shape[-1])]\n    bounds = bounds + len(held) * 0\n"
        + SUM,
    ),
    ("tensors left by more sizes than 4", SUM, "    KEPT[x.shape[-1]] = torch.arange(x.shape[-1])\n" + SUM),
    ("class attributes changed", FORWARD, "        type(self).known = x.shape[-1]\n" + FORWARD),
    ("offers", "def sums(x, bounds,", "def sums(x, bounds, also=None,"),
    ("entries held at the end", SUM, "    KEPT.update(dict.fromkeys(range(100)))\n" + SUM),
    ("tensors held at the end", SUM, "    KEPT[len(KEPT)] = [torch.ones(1) for _ in range(9)]\n" + SUM),
    ("offers", '    """The sum of each row up to its bound."""\n', ""),
    ("under another default dtype", SUM, SUM.replace("* scale", "* torch.tensor(scale + 0.3)")),
    ("as one graph", SUM, "    x.data_ptr()\n    import gc\n\n    gc.collect()\n" + SUM),
    ("differentiated twice", BACKWARD, "    @torch.autograd.function.once_differentiable\n" + BACKWARD),
    ("differentiated twice", TWICE, "        return (2 * x * grad).detach() + 0 * x\n"),
    ("under checkpoint", READS, 2 * READS),
    ("tensors that the graph holds beside the saved ones", KEEPS, KEEPS + "        ctx.more = x * 3\n"),
    (
        "under autocast, one input in bfloat16",
        FORWARD,
        "        if x.dtype is not self.weight.dtype:\n            raise TypeError\n" + FORWARD,
    ),
    ("under another default dtype", TWICE, "        return 2 * x * grad * torch.tensor(1.3) / 1.3\n"),
    ("unnoticed when changed before backward", KEEPS, KEEPS.replace("x)", "x.data)")),
    ("left where it was by to()", COUNT, "        self.count = torch.zeros((), dtype=torch.int64)\n"),
    ("names that nothing binds", "def _private(x):\n    return x", "def _private(x):\n    return time.sleep(x)"),
    ("private names that nothing defines", "def _private(x):", "def _private_one(x):"),
    ("deepcopy of the module", MEMBER, "        self.kept = {}.keys()\n" + MEMBER),
    ("dtypes after half()", FORWARD, FORWARD + "\n    def _apply(self, fn, recurse=True):\n        return self\n"),
    ("attributes of its parameters", MARK, ""),
    (
        "results kept when it is called again",
        SUM,
        SUM.replace("return ", "made = ")
        + "    if made.requires_grad:\n        return made\n"
        + "    return KEPT.setdefault((made.shape, made.dtype), made.clone()).copy_(made)\n",
    ),
    (
        "in the midst of another thread's call",
        SUM,
        "    scratch = KEPT.setdefault((x.shape, x.dtype), torch.zeros_like(x)).detach()\n"
        + "    scratch.copy_(x)\n"
        + SUM.replace(" x,", " scratch + 0 * x,"),
    ),
]


def some(rows):
    return sampled(rows, 10, lambda number, row: f"{number}-{row[0]}")


class Slotted:
    __slots__ = ("__weakref__", "held")


def test_tensors_in_slots_and_queues_are_seen():
    one, value = torch.ones(1), Slotted()
    assert values.tensors(value) == {}
    value.held = collections.deque([one])
    assert values.tensors(value) == {".held[0]": one}
    assert values.copied(value).held[0] is not one


@pytest.mark.parametrize(("fact", "old", "new"), some(WRONG))
def test_a_wrong_fix_is_seen(strayed, fact, old, new):
    assert fact in {one.fact for one in strayed(old, new).strayed}


LAZY = {
    "named": "def __getattr__(name):\n    if name == 'EAGER':\n        return True\n    raise AttributeError\n",
    "in a table": (
        "_MADE = {'EAGER': True}\n"
        "def __getattr__(name):\n    if name in _MADE:\n        return _MADE[name]\n    raise AttributeError\n"
    ),
    "in a closure": (
        "def _lazy(made):\n"
        "    def get(name):\n"
        "        if name in made:\n            return made[name]\n        raise AttributeError\n"
        "    return get\n"
        "__getattr__ = _lazy({'EAGER': True})\n"
    ),
    "by a class": (
        "import sys, types\n"
        "class _Own(types.ModuleType):\n    EAGER = property(lambda self: True)\n"
        "sys.modules[__name__].__class__ = _Own\n"
    ),
}


@pytest.mark.parametrize("lazy", LAZY.values(), ids=LAZY)
def test_a_name_that_is_made_when_asked_for_is_offered_and_a_module_is_not(tmp_path, lazy):
    before, after = (
        counting.module(tmp_path, one, "asked") for one in ("import re\nEAGER = False\n", f"import json\n{lazy}")
    )
    assert public.offers(after)["EAGER"] == public.offers(before)["EAGER"] == ["bool"]
    assert "json" not in public.offers(after)


def test_what_a_library_is_missing_for_or_a_table_holds_ends_no_fact_of_a_file(tmp_path):
    lazy = (
        "_MADE = {'EAGER': 'not_installed_anywhere', 'OTHER': 'json'}\n_ROWS = [{}, [], 'EAGER']\n"
        "def __getattr__(name):\n"
        "    _ROWS\n"
        "    if name in _MADE:\n        import importlib\n        return importlib.import_module(_MADE[name]).loads\n"
        "    raise AttributeError\n"
    )
    found = public.offers(counting.module(tmp_path, lazy, "asked"))
    assert "OTHER" in found and "EAGER" not in found


def test_a_fact_of_a_file_that_only_the_patched_tree_cannot_tell_is_a_difference(tmp_path, pristine):
    worse = counting.SOURCE + "\n\nclass Odd:\n    __module__ = property(lambda self: 1 / 0)\n\n\nodd = Odd()\n"
    made = census.compare(pristine, counting.census(tmp_path, worse, use, pristine))
    assert {one.fact: one.patched for one in made.strayed}["offers"] == "otherwise: ZeroDivisionError"
    assert "offers" not in counting.census(tmp_path, worse, use)["counted.py"]


AS_A_MODULE = {
    "": [],
    "def __dir__():\n    raise ImportError\n": ["dir()"],
    "import sys\ndef __dir__():\n    sys.modules['made_by_dir'] = sys\n    return []\n": ["dir() without imports"],
    "__spec__ = None\n": ["find_spec()"],
    "import sys, types\nsys.modules[__name__] = types.ModuleType(__name__)\n": ["__file__", "find_spec()"],
}


@pytest.mark.parametrize(("source", "amiss"), AS_A_MODULE.items())
def test_what_tools_ask_of_a_module_is_seen(tmp_path, monkeypatch, source, amiss):
    monkeypatch.delitem(sys.modules, "made_by_dir", raising=False)
    assert public.amiss(counting.module(tmp_path, source, "asked")) == amiss


def test_a_class_that_is_made_anew_has_not_changed(tmp_path):
    toy = counting.module(tmp_path, counting.SOURCE)
    before = public.class_state(toy)
    toy.Layer.known = 1
    assert public.changed(before, public.class_state(toy)) == ["Layer.known"]
    assert public.changed(before, public.class_state(counting.module(tmp_path, counting.SOURCE))) == []


def test_what_a_package_exports_is_offered_though_it_is_private(tmp_path):
    package = tmp_path / "exporting"
    package.mkdir()
    (package / "__init__.py").write_text("from exporting.sums import _hidden, shown, used\n\nMADE = used()\n")
    source = (
        "def _hidden(x, whole=True):\n    return x, x\ndef shown():\n    return 1, 2, 3\ndef used():\n    return 1\n"
    )
    (package / "sums.py").write_text(source)
    exported = public.exported(tmp_path, ["exporting/sums.py"])["exporting/sums.py"]
    assert exported == {"_hidden", "shown"}
    offered = public.offers(counting.module(package, source, "sums"), exported)
    assert offered["_hidden"] == ["positional_or_keyword x", "positional_or_keyword whole = True", "returns 2 values"]
    assert offered["shown"] == ["returns 3 values"] and offered["used"] == []


@pytest.mark.parametrize("own", [False, True])
def test_what_an_import_of_another_distribution_changes_is_its_own(tmp_path, monkeypatch, pristine, own):
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "another.py").write_text("import warnings\nwarnings.simplefilter('ignore')\n")
    monkeypatch.syspath_prepend(tmp_path / "beside")
    monkeypatch.delitem(sys.modules, "another", raising=False)
    more = "import another\n" + "warnings.simplefilter('error')\n" * own
    made = counting.census(tmp_path / "tree", counting.SOURCE.replace(KEPT, more + KEPT, 1), lambda toy: toy.asks(toy))
    found = census.compare(pristine, made).strayed
    assert {(one.call, one.patched) for one in found} == ({("counted.py", "warning filters")} if own else set())


HOLDER = """

class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer(4)
        self.bound = {}

    def forward(self, x):
        return {}(x)
"""


@pytest.mark.parametrize(("bound", "call"), [("[self.layer]", "self.bound[0]"), ("None", "(lambda y: self.layer(y))")])
def test_a_module_that_is_exchanged_is_not_called_any_more(tmp_path, bound, call):
    def run(toy):
        toy.Holder()(torch.ones(3, 4))

    before = counting.census(tmp_path / "before", counting.SOURCE + HOLDER.format(None, "self.layer"), run)
    after = counting.census(tmp_path / "after", counting.SOURCE + HOLDER.format(bound, call), run, before)
    strayed = {one.fact for one in census.compare(before, after).strayed}
    assert ("with its parts exchanged" in strayed) == (bound != "None")


KERNEL = """
import triton
import triton.language as tl


@triton.heuristics({{"EVEN": lambda given: True}})
@triton.autotune(configs=[triton.Config({{}}, num_warps=2)], key=[{keys}])
@triton.jit
def kernel(x, rows, {arguments}):
    tl.store(x, 0)
"""
TUNED = {"keys": "'SIZE'", "arguments": "SIZE: tl.constexpr, MASK: tl.constexpr"}


@pytest.mark.parametrize(
    ("change", "strayed"),
    [
        ({}, False),
        ({"arguments": "other, SIZE: tl.constexpr, MASK: tl.constexpr, WIDE: tl.constexpr"}, False),
        ({"arguments": "SIZE: tl.constexpr"}, True),
        ({"keys": "'rows', 'SIZE'"}, True),
    ],
)
def test_what_a_kernel_is_told_and_tuned_for(tmp_path, change, strayed):
    pytest.importorskip("triton")
    made = [{**TUNED}, {**TUNED, **change}]
    before, after = (
        {"counted.py": {"offers": public.offers(counting.module(tmp_path, KERNEL.format(**one), f"kernel{at}"))}}
        for at, one in enumerate(made)
    )
    assert bool(census.compare(before, after).strayed) == strayed


def test_a_gpu_that_has_failed_ends_a_census_and_is_told(tmp_path, monkeypatch):
    toy, calls = counting.module(tmp_path, counting.SOURCE), Calls(tmp_path, ["counted.py"])
    before, _ = sys.gettrace(), calls.start()
    try:
        use(toy)
    finally:
        calls.stop()
        sys.settrace(before)
    arm, told = CensusProbe.__new__(CensusProbe), list[dict]()
    vars(arm).update(calls=calls, tree=tmp_path, lane="cuda", wanted=None, seed=0)
    works = iter([True, True, False])
    monkeypatch.setattr(modes, "gpu_works", lambda: next(works))
    reason = arm._again(0.0, told.append)
    *rows, (call, last) = [(call, taken) for facts in told for call, taken in facts.items()]
    assert reason == f"the GPU fails after {call}" and set(last.values()) == {"otherwise: the GPU fails"}
    assert len([taken for _, taken in rows if "made again" not in taken]) == 2
    again = Again(next(iter(calls.kept.values())), tmp_path, "cuda")
    again.ask()
    assert not {"on meta", "with integers doubled"} & {name for name, _ in again.asked}


def test_what_could_not_be_told_before_is_not_changed():
    """CUDA's state before a process uses a GPU; and the census's own handlers are none of upstream's."""
    assert state.changed(
        {"CUDA stream": None, "threads": 1, "filters": 1}, {"CUDA stream": 7, "threads": 1, "filters": 2}
    ) == ["filters"]
    before = state.state()
    with Heard().listening():
        assert state.changed(before, state.state()) == []


def test_kinds_of_calls_that_only_one_tree_sees_take_no_place_of_others(tmp_path):
    def source(word):
        return counting.SOURCE + f"\n\ndef word():\n    return {word!r}\n"

    def calls(toy):
        for one in toy.word():
            toy.sums(torch.ones(3, 4), torch.tensor([1, 4, 2]), whole=one)
        toy.sums(torch.ones(3, 4), torch.tensor([1, 4, 2]), scale=2.0)

    before = counting.census(tmp_path / "before", source(""), calls)
    after = counting.census(tmp_path / "after", source("abcdefg"), calls, before)
    (call,) = (call for call in before if "scale=float" in call)
    assert len(after[call]) > 40 and not any("whole=" in call for call in after)


def test_what_is_wrong_in_two_ways_at_once_is_drawn(strayed):
    """Nowhere else has a call both inputs with gaps and no gradients."""
    two = "    if not torch.is_grad_enabled() and not x.is_contiguous():\n        return x.sum(-1)\n"
    facts = {one.fact for one in strayed(SUM, two + SUM).strayed}
    assert facts and all(fact.startswith(("drawn: strided, ", "drawn: in wider rows, ")) for fact in facts)


RIGHT = [
    (SUM, "    return (x * inside).sum(-1) * scale\n"),
    (
        SUM,
        "    made = torch.empty(len(x), dtype=x.dtype, device=x.device)\n"
        + SUM.replace("return ", "made[:] = ")
        + "    return made\n",
    ),
    (SUM, SUM.replace("* scale", "* (scale if torch.is_grad_enabled() else scale * (1 + 2.0**-23))")),
    (SUM, "    parts = x.masked_fill(~inside, 0.0)\n" + SUM.replace("torch.where(inside, x, 0.0)", "parts")),
    ("def _private(x):\n", "def _private(x, also=None):\n"),
    (
        SUM,
        "    return torch.nn.functional.pad(x.cumsum(-1), (1, 0)).gather(-1, bounds[:, None].long())[:, 0] * scale\n",
    ),
    (MEMBER, "        self.how = torch.ones(2)\n        self.weight.kept = 1\n" + MEMBER),
    ("*, whole=True", "*, whole=True, more=None"),
    ("        return 2 * x * grad\n", "        return grad * x + grad * x\n"),
    ("        return 2 * x * grad\n", "        return 2 * x * grad, *[None] * (len(ctx.needs_input_grad) - 1)\n"),
    (FORWARD, "        return (Square.apply(x) * self.weight).unsqueeze(0).squeeze(0)\n"),
    ("torch.int64), persistent=False", "torch.int32), persistent=False"),
    (FORWARD, "        self.last = x.shape\n" + FORWARD),
]


@pytest.mark.parametrize(("old", "new"), some(RIGHT))
def test_a_right_fix_is_not(strayed, old, new):
    made = strayed(old, new)
    assert made.facts > 100
    assert made.strayed == []


NORM = """

def norm(grads):
    \'\'\'Of an iterable of tensors.\'\'\'
    total = sum((grad.square().sum() for grad in grads), torch.zeros(()))
    torch.distributed.all_reduce(total)
    return total
"""


@pytest.fixture
def group():
    torch.distributed.init_process_group(store=torch.distributed.HashStore(), rank=0, world_size=1, backend="gloo")
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("fact", "wrong"),
    [
        ("collectives", "    if not grads:\n        return torch.zeros(())\n"),
        ("with iterators for lists", "    device = next(iter(grads), torch.zeros(())).device\n"),
        (None, "    grads = list(grads)\n"),
    ],
)
def test_a_rank_with_nothing_joins_and_an_iterator_is_read_once(tmp_path, group, fact, wrong):
    def use(toy):
        toy.norm([torch.ones(3), torch.ones(2)])
        toy.norm([])

    before = counting.census(tmp_path / "before", counting.SOURCE + NORM, use)
    after = (counting.SOURCE + NORM).replace("    total = sum", wrong + "    total = sum")
    made = census.compare(before, counting.census(tmp_path / "after", after, use, before))
    assert {one.fact for one in made.strayed} == ({fact} if fact else set())


def test_one_rank_alone_waits_for_no_other(group):
    x = torch.ones(2)
    with modes.Alone():
        assert (x + 1).sum() == 4
        with pytest.raises(RuntimeError, match="alone"):
            torch.distributed.all_reduce(x)
    torch.distributed.all_reduce(x)


def test_bounds_of_packed_sequences_are_no_small_integers(tmp_path):
    """``repeat_interleave`` takes none."""
    packed = "\n\ndef packed(x, bounds):\n    return {}\n"
    first = counting.SOURCE + packed.format(
        "x[torch.searchsorted(bounds, torch.arange(x.shape[0]), right=True).clamp(max=1) - 1]"
    )
    other = counting.SOURCE + packed.format(
        "x[torch.repeat_interleave(torch.zeros(1, dtype=torch.int64), bounds.diff())]"
    )

    def use(toy):
        toy.packed(torch.ones(5, 3), torch.tensor([0, 5]))

    (facts,) = (facts for call, facts in counting.census(tmp_path, first, use).items() if "packed" in call)
    after = counting.census(tmp_path / "other", other, use)
    (others,) = (facts for call, facts in after.items() if "packed" in call)
    known = {name for name in facts if name.startswith("with integers in")}
    assert known == {"with integers in int32"} and all(facts[name] == others[name] for name in known)


def test_bounds_may_be_on_the_host_where_upstream_takes_them_there(tmp_path):
    """Tokens on meta stand for tokens on a GPU."""

    def source(value):
        return counting.SOURCE + f"\n\ndef packed(x, bounds):\n    return {value}\n"

    def use(toy):
        toy.packed(torch.ones(5, 3), torch.tensor([0, 2, 5]))

    before = counting.census(tmp_path / "before", source("torch.cat([x[:b] for b in bounds])"), use)
    after = source("torch.cat([x[: bounds[1]], x[:3] * (bounds[:, None] >= 0), x[3:]])")
    made = census.compare(before, counting.census(tmp_path / "after", after, use, before))
    assert "on meta, bounds on the host" in {one.fact for one in made.strayed}


def test_a_call_that_fails_at_another_length_is_told_by_its_error(tmp_path, pristine):
    worse = counting.SOURCE.replace(SUM, "    if x.shape[-1] > 8:\n        raise OverflowError\n" + SUM, 1)
    made = census.compare(pristine, counting.census(tmp_path, worse, use, pristine))
    assert {one.fact: one.patched for one in made.strayed}["largest tensor with 16 for 4"] == "otherwise: OverflowError"


def test_nothing_comes_in_the_midst_of_a_call_by_tritons_interpreter(tmp_path, monkeypatch, pristine):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    facts = counting.census(tmp_path, counting.SOURCE, use)
    other = {name for taken in pristine.values() for name in taken} - {n for taken in facts.values() for n in taken}
    assert other == {"in the midst of another thread's call"}


def test_what_nobody_writes_is_alike_each_time(tmp_path):
    """Stand-ins of kernels leave the memory of results as it was."""
    source = counting.SOURCE.replace(SUM, "    return torch.empty(len(x), 4096).mul(1)\n", 1)
    before = counting.census(tmp_path / "before", source, use)
    (facts,) = (facts for call, facts in before.items() if "scale=float" in call)
    assert {facts["a second time"], facts["in a thread"], facts["of zeros"][:6]} <= {census.AS, "finite"}, facts
    assert census.compare(before, counting.census(tmp_path / "after", source, use, before)).strayed == []


def test_what_the_pack_means_is_told_with_its_reason(tmp_path, pristine):
    more = counting.SOURCE.replace(SUM, "    logger.warning('slow')\n" + SUM, 1)
    after = counting.census(tmp_path, more, use, pristine)
    meant = [
        Meant(call="counted.sums*", fact="says*", patched="log record of level warning x1", reason="it tells"),
        Meant(call="counted.sums*", fact="as one graph", patched="raises", reason="it tells"),
    ]
    made = census.compare(pristine, after, meant)
    assert made.strayed == []
    assert {one.meant for one in made.differences} == {"it tells"}
    other = [row.model_copy(update={"patched": "warning *"}) for row in meant]
    assert (
        census.compare(pristine, after, other).strayed
        == made.model_copy(
            update={"differences": [one.model_copy(update={"meant": None}) for one in made.differences]}
        ).differences
    )


def test_a_file_that_a_patch_adds_holds_no_tensors(pristine):
    held = "tensors held at the end"
    few, many = ({"new.py": {"offers": {}, held: count, "entries held at the end": 90}} for count in (4, 9))
    (found,) = census.compare(pristine, pristine | many).strayed
    assert (found.call, found.fact, found.pristine, found.patched) == ("new.py", held, "0", "9")
    assert census.compare(pristine, pristine | few).strayed == []


def test_a_name_that_another_file_defines_now_is_not_gone(tmp_path):
    """What a file imports it need not offer; what it defined it has to, from wherever it comes."""
    moved = counting.SOURCE[counting.SOURCE.index("def asks(module)") :]
    counting.module(tmp_path / "elsewhere", moved, "elsewhere")
    sources = [counting.SOURCE, counting.SOURCE.replace(moved, "from elsewhere import asks\n")]
    sources += [sources[1].replace("import asks", "import asks as ask")]
    here, there, gone = (
        {"counted.py": {"offers": public.offers(counting.module(tmp_path / str(i), source))}}
        for i, source in enumerate(sources)
    )
    assert census.compare(here, there).strayed == census.compare(there, gone).strayed == []
    (found,) = census.compare(here, gone).strayed
    assert found.patched == "asks is gone"
    other = counting.module(
        tmp_path / "other",
        counting.SOURCE.replace("class Square(", "from fractions import Fraction as Square\n\n\nclass Cube("),
    )
    assert census.compare(here, {"counted.py": {"offers": public.offers(other)}}).strayed == []


def test_what_the_pristine_tree_does_not_do_well_is_not_asked(tmp_path, pristine):
    """A host wait less, a warning less, one memory more: nothing that a fix has to answer for."""
    worse = counting.SOURCE.replace(SUM, "    bounds.max().item()\n    logger.warning('slow')\n" + SUM, 1)
    before = counting.census(tmp_path / "worse", worse, use)
    assert census.compare(before, counting.census(tmp_path / "better", counting.SOURCE, use, before)).strayed == []


def test_a_call_that_upstream_does_not_end_is_asked_only_what_it_leaves(tmp_path):
    """Upstream raised, each time alike; the mended call gets as far as what warns, draws and seeds."""

    def once(toy):
        with contextlib.suppress(ValueError):
            toy.sums(torch.ones(3, 4), torch.tensor([1, 4, 2]))

    def facts(more):
        mended = counting.SOURCE.replace(SUM, f"{more}    logger.warning('slow')\n    scale = torch.rand(())\n{SUM}", 1)
        made = census.compare(before, counting.census(tmp_path / "mended", mended, once, before))
        return {one.fact for one in made.strayed}

    source = counting.SOURCE.replace(SUM, "    raise ValueError('not for these')\n", 1)
    before = counting.census(tmp_path / "raises", source, once)
    assert facts("") <= {"leaves changed"}
    assert facts("    torch.set_default_dtype(torch.float64)\n") == {"leaves changed"}


def test_calls_of_other_sizes_are_not_compared(pristine):
    """Where the pristine tree raises the first call of a kind may be another one."""
    assert all(
        "float32 [3, 4] int64 [3]" in facts["of"]
        for call, facts in pristine.items()
        if call.startswith("counted.sums(")
    )
    one, other = ({"f()": {"of": f"[{n}]", "ends": f"float32 [{n}]"}} for n in (3, 4))
    assert census.compare(one, other).untaken == census.UNSEEN
    (found,) = census.compare(one, {"f()": {**other["f()"], "of": "[3]"}}).strayed
    assert (found.fact, found.patched) == ("ends", "float32 [4]")


def test_an_object_is_copied_without_what_cannot_be(tmp_path):
    """A lock, as a process group and a stream, stays the same thing; parameters beside it are copies."""
    held = MEMBER.replace("self.", "self.lock = __import__('threading').Lock()\n        self.", 1)
    facts = counting.census(tmp_path, counting.SOURCE.replace(MEMBER, held, 1), use)
    (layer,) = (taken for call, taken in facts.items() if "Layer.forward" in call)
    assert layer["a second time"] == layer["under no_grad"] == layer["with eval() and train()"] == census.AS
    assert layer["moved by to()"] == [".count", ".weight"]


def test_a_queue_for_which_a_thread_waits_is_copied():
    """The waiting thread's lock is held by a condition, in a deque: only while it waits."""
    given, ended = queue.Queue(), threading.Event()
    waiting = threading.Thread(target=lambda: given.get() and ended.set())
    waiting.start()
    while not given.not_empty._waiters:
        time.sleep(0.001)
    try:
        assert values.copied({"queue": given, "x": torch.ones(2)})["x"].tolist() == [1, 1]
    finally:
        given.put(True)
        waiting.join()
    assert ended.is_set()


def test_a_call_that_cannot_be_made_again_is_named():
    facts = {
        "made": {"ends": "None", census.MADE: census.AS},
        "f(x=int)": {"ends": "None"} | {census.MADE: "otherwise: raises E"},
    }
    facts |= {"g()": {"ends": "raises ValueError", census.MADE: census.AS}}
    assert census.unmade(facts) == ["f (raises E)"]


def test_arguments_are_as_free_as_they_were(tmp_path):
    """What recomputation drops, it drops by an empty storage, which a view of numpy's would forbid."""

    def drops(toy):
        x = torch.ones(3, 4)
        toy.sums(x, torch.tensor([1, 4, 2]))
        x.untyped_storage().resize_(0)

    assert counting.census(tmp_path, counting.SOURCE, drops)


def test_memory_that_was_given_back_is_not_read():
    """It would end the process."""
    x = torch.ones(3, 4)
    y = x[1:]
    before = values.looks(x)
    x.untyped_storage().resize_(0)
    assert values.emptied(x) and values.emptied(y)
    assert values.looks(x)[:-1] == before[:-1] and values.looks(x)[-1] == ""
    with pytest.raises(ValueError):
        values.clone(y)


DECORATED = """
import functools


def noted(function):
    @functools.wraps(function)
    def wrapper(*args, **named):
        return function(*args, **named)

    return wrapper


@noted
def doubled(x, by=2.0):
    return x * by


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    @noted
    def forward(self, x, *, by=2.0):
        return x * self.weight * by
"""


def test_decorated_functions_and_methods_go_by_their_own_names_and_are_made_again(tmp_path):
    def call(toy):
        toy.doubled(torch.ones(3))
        toy.doubled(torch.ones(3, 2), by=3.0)
        toy.Scaled()(torch.ones(2, 3), by=3.0)

    facts = counting.census(tmp_path, counting.SOURCE + DECORATED, call)
    made = {key: taken["a second time"] for key, taken in facts.items() if "a second time" in taken}
    kinds = {"doubled(x=float32 1d)", "doubled(x=float32 2d, by=float)", "Scaled.forward(x=float32 2d, by=float)"}
    assert {f"counted.{kind}" for kind in kinds} <= made.keys()
    assert set(made.values()) == {"as it is"}


def test_widths_that_weights_fix_are_not_varied(pristine):
    (layer,) = (taken for key, taken in pristine.items() if key.startswith("counted.Layer.forward("))
    varied = {fact.split(" made ")[0] for fact in layer if " made " in fact}
    assert varied == {"3"}
