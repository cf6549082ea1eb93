"""Run tasks of lm-evaluation-harness on a checkpoint and keep what they gave beside its run."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from model.evaluation.opening import Opened
from model.saved import reading
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import write_atomic
from patchlane.base.optional import load

HARNESS = "lm-eval"
logger = logging.getLogger("model.evaluation.tasks")


class TaskResult(BaseModel):
    """``metrics``: as the harness names them, "acc,none" and "acc_stderr,none"; "N/A" stays a text. ``weights``: the
    SHA-256 of the checkpoint's digests (``reading.digest``), None in the oldest results."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    metrics: dict[str, float | str]
    version: str | None = None
    shots: int | None = None
    samples: int | None = None
    weights: str | None = None


class Evaluation(BaseModel):
    """What is known of one checkpoint. ``sequence``: the most tokens that it read at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = 1
    checkpoint: str
    step: int
    size: str
    sequence: int
    harness: str  # its version, of the newest results
    tasks: dict[str, TaskResult]


def require() -> None:
    """Raise CannotTestHere with the pip command where the harness is not installed."""
    load("lm_eval", HARNESS)


def run(opened: Opened, names: Sequence[str], include: Sequence[Path]) -> Evaluation:
    """The results of tasks and groups, each by its name or by its YAML file; ``include``: folders of further ones.

    Raises PatchlaneError for a task that there is not, that cannot be read, or that has text generated.
    """
    evaluator, adapter = load("lm_eval.evaluator", HARNESS), load("model.evaluation.adapter", HARNESS)
    manager = _manager(names, [str(folder) for folder in include])
    tasks = [one for name in names for one in _loaded(manager, name)]
    model, weights = adapter.Checkpoint(opened), reading.digest(opened.path)
    try:
        results = evaluator.simple_evaluate(model=model, tasks=tasks, task_manager=manager, log_samples=False)
    except Exception as error:
        if isinstance(error, PatchlaneError) or _ours(error, adapter.__file__):
            raise
        said = f"{type(error).__name__}: {_first_line(error)}"
        raise PatchlaneError(f"the tasks fail in lm-eval: {said}", "mend their YAML or their data") from error
    version: str = load("lm_eval", HARNESS).__version__
    return Evaluation(
        checkpoint=opened.path.name,
        step=opened.step,
        size=opened.size.name,
        sequence=opened.sequence,
        harness=version,
        tasks={name: _result(results, name, weights) for name in results["results"]},
    )


def _manager(names: Sequence[str], include: list[str]) -> Any:
    """The harness's tasks; without its own 14,000, which take 5 s to look through, where none of them is asked for."""
    made = load("lm_eval.tasks", HARNESS).TaskManager
    found = made(include_path=include, include_defaults=False)
    if all(name in found.all_tasks or Path(name).is_file() for name in names):
        return found
    return made(include_path=include)


def _loaded(manager: Any, name: str) -> list[Any]:
    """The harness's task or group called ``name``, or each task of a tag."""
    try:
        found = manager.load([name])
    except Exception as error:  # of YAML, of Python in it, of data sets that are not there: all are the task's
        raise PatchlaneError(
            f"--tasks {name}: {_first_line(error)}",
            "a task of lm-eval, a YAML file of one, or --include-path with its folder",
        ) from error
    return list(found["groups"].values())[:1] or list(found["tasks"].values())


def _ours(error: Exception, adapter: str) -> bool:
    """Whether the harness had called the adapter when it failed: then the task is not to blame."""
    return any(frame.filename == adapter for frame in traceback.extract_tb(error.__traceback__))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _result(results: dict[str, Any], name: str, weights: str | None) -> TaskResult:
    kept = {key: value for key, value in results["results"][name].items() if isinstance(value, int | float | str)}
    kept = {key: value for key, value in kept.items() if "," in key}  # a metric and its filter
    version = results.get("versions", {}).get(name)
    return TaskResult(
        metrics=kept,
        version=None if version is None else str(version),
        shots=results.get("n-shot", {}).get(name),
        samples=results.get("n-samples", {}).get(name, {}).get("effective"),
        weights=weights,
    )


def keep(path: Path, evaluation: Evaluation) -> Path:
    """Write ``evaluation`` of the checkpoint ``path`` beside its run; results of other tasks stay where they are of the
    same weights. The file.

    Where some are of others, as after ``--fresh`` or a rewind, the old file moves to ``STEP.other_weights.json``. It is
    ``RUN/evaluation/STEP.json``, or beside a checkpoint that no run holds. Raises PatchlaneError where the file is none
    of this kind.
    """
    inside = path.resolve().parent
    folder = (inside.parent if inside.name == "checkpoints" else inside) / "evaluation"
    file, of = folder / f"{path.name}.json", reading.digest(path)
    own = {name: one.model_copy(update={"weights": one.weights or of}) for name, one in evaluation.tasks.items()}
    if file.exists():
        try:
            before = Evaluation.model_validate_json(file.read_bytes())
        except ValidationError as error:
            raise PatchlaneError(f"{file} holds no results of model.evaluate", "move it elsewhere") from error
        same = {name: one for name, one in before.tasks.items() if one.weights == of}
        if len(same) < len(before.tasks):
            aside = file.replace(file.with_name(f"{path.name}.other_weights.json"))
            logger.warning("results of other weights than the checkpoint's are now in %s", aside)
        own = {**same, **own}
    folder.mkdir(parents=True, exist_ok=True)
    evaluation = evaluation.model_copy(update={"tasks": own})
    write_atomic(file, (evaluation.model_dump_json(indent=1) + "\n").encode())
    return file


def rows(evaluation: Evaluation) -> list[tuple[str, str, str, str]]:
    """(task, metric, value, its standard error) of each metric."""
    found = []
    for task, result in evaluation.tasks.items():
        for key, value in result.metrics.items():
            metric, _, filtered = key.partition(",")
            if metric.endswith("_stderr"):
                continue
            error = result.metrics.get(f"{metric}_stderr,{filtered}", "")
            named = metric if filtered == "none" else f"{metric}, {filtered}"
            found.append((task, named, _shown(value), _shown(error)))
    return found


def _shown(value: float | str) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
