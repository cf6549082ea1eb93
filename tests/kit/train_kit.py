"""Runs of nam56r_tiny on short rows: their options, and reading what they wrote."""

import math
import shutil
from dataclasses import replace

import pytest

from model.definition.recipes import Recipe
from model.kinds.run import Options
from model.records import history
from patchlane.base.exits import Exit

NAMES = {"ep": "expert_parallel", "pp": "pipeline_parallel"}
FIELDS = {*Recipe.model_fields, *Options.model_fields} - {"steps"}


def options(out, data, first="nam56r_tiny", **changed):
    """Arguments of model.train; ``save_every=3`` is ``--set save_every=3``, True of an option a flag, False none of it,
    a list each."""
    values = {"out": out, "data": data, "sequence": 64, "micro_batch": 1, "warmup": 2, "no_wandb": True} | changed
    found = [first]
    for name, value in values.items():
        name, value = ("bf16", not value) if name == "fp32" else (NAMES.get(name, name), value)
        if name in FIELDS:
            found += ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
            continue
        flag = "--" + name.replace("_", "-")
        each = value if isinstance(value, list) else [value]
        found += [flag] if value is True else [] if value is False else [x for one in each for x in (flag, str(one))]
    return found


DISTURBED = (
    "stop_after",
    "rows",
    "weights",
    "poison",
    "size",
    "bad",
    "left_out",
    "slow",
    "calls",
    "at_once",
    "as_on_gpu",
)  # of ``trained.cli``


def train(stack, out, data, *, world=1, **changed):
    """A run of ``world`` ranks to its end, disturbed by what ``trained.cli`` takes; how each rank ended.

    One that is stopped by ``stop_after`` has to end with the code of its own, which is 0 here.
    """
    ended = _trained(stack, out, data, world, changed)
    if changed.get("stop_after") not in (None, changed.get("steps")):
        ended = [
            replace(one, code={Exit.STOPPED: 0, 0: "0, though steps are left"}.get(one.code, one.code)) for one in ended
        ]
    return ended


def _trained(stack, out, data, world, changed):
    taken = {name: changed[name] for name in DISTURBED if name in changed}
    changed = {name: value for name, value in changed.items() if name not in taken}
    named = {name: str(value) if name in ("rows", "weights", "calls") else value for name, value in taken.items()}
    given = options(out, data, **changed)
    if world == 1:
        return [stack.run("trained:cli", given, **named)]
    return [child.wait() for child in stack.ranks(world, "trained:cli", given, **named)]


def good(ended):
    """Every rank ended well."""
    assert [one.code for one in ended] == [0] * len(ended), "\n".join(one.said for one in ended)


def steps(out):
    """The training records in order, each once."""
    found = [record for record in history.read(out) if record.kind == "train"]
    assert [record.step for record in found] == list(range(1, len(found) + 1))
    return found


def measured(out, first=1):
    """From step ``first`` on, all that a step's arithmetic gives."""
    names = ("step", "tokens", "loss", "mtp_loss", "aux_loss", "indexer_loss", "grad_norm", "learning_rate")
    return [tuple(getattr(record, name) for name in names) for record in steps(out) if record.step >= first]


def kinds_sum_to_the_norm(out):
    """The diagnosed steps, in each of which the norms by kind are parts of the whole one."""
    whole, found = {record.step: record.grad_norm for record in steps(out)}, history.diagnoses(history.read(out))
    for record in found:
        assert math.hypot(*record.gradient_norms.values()) == pytest.approx(whole[record.step], rel=1e-5)
    return [record.step for record in found]


def held_out(out):
    return [(record.step, record.tokens, record.loss) for record in history.valid(history.read(out))]


def checkpoints(out):
    return sorted(path.name for path in (out / "checkpoints").glob("*"))


def copy(run, to):
    """A run directory to go on from, leaving the other as it is."""
    shutil.copytree(run, to)
    return to
