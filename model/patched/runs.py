"""model/patched_paths.yaml: the runs through which every validated patch executes, and their commands."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from model.definition.recipes import RECIPES, Recipe
from model.patched.stacks import DEFAULT
from patchlane.base.errors import PatchlaneError
from reproducers.record import schema
from reproducers.record.schema import Model

FILE = Path(__file__).parents[1] / "patched_paths.yaml"
Setting = str | int | float | bool


class PatchedRun(Model):
    """One run. ``gpus``: 0 is a CPU, which takes all ``ranks``. ``patches``: as --patches. ``after``: the run whose
    checkpoint it begins with. ``alike``: two runs or more that differ from each other by as much as it may differ from
    them."""

    about: str
    recipe: str
    gpus: int = Field(ge=0)
    ranks: int = Field(default=1, ge=1)
    stack: str = DEFAULT
    patches: str = "all"
    after: str | None = None
    options: dict[str, Setting] = Field(default={})
    paths: dict[str, str] = Field(default={})
    alike: list[str] = Field(default=[])
    cuda_graphs: bool = False

    @model_validator(mode="after")
    def _ranks_of_a_cpu(self) -> Self:
        if self.gpus and self.ranks > 1:
            raise ValueError(f"ranks: {self.ranks} are of a CPU; a run by GPUs has one on each")
        return self

    @property
    def rows(self) -> Recipe:
        """Its recipe, with what its options say of a micro-batch's rows."""
        recipe = RECIPES.get(self.recipe) or Recipe(size=self.recipe)
        said = {name: self.options.get(name) for name in ("micro_batch", "sequence")}
        return recipe.changed(**said).whole()

    @property
    def _upstream(self) -> list[str]:
        return ["--stack", self.stack, "--patches", self.patches]

    def ahead(self) -> list[str]:
        """The command that compiles upstream's kernels of Mamba-3, for minutes; none where the run takes none."""
        path, recipe = self.paths.get("mamba3", ""), self.rows
        if not path.startswith("tilelang"):
            return []
        shape = ["--rows", str(recipe.micro_batch), "--length", str(recipe.sequence)] if path.endswith("_rows") else []
        return [sys.executable, "-m", "model.loop.compile_mamba3", recipe.size, *self._upstream, *shape]

    def command(self, out: Path) -> list[str]:
        """The command that trains it into ``out``; under torchrun where it has several ranks."""
        world = self.gpus or self.ranks
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        words = [sys.executable, *(ranks if world > 1 else []), "-m", "model.train", self.recipe]
        words += [*self._upstream, "--out", str(out), *(["--cuda-graphs"] if self.cuda_graphs else [])]
        words += [word for name, value in self.options.items() for word in ("--set", f"{name}={value}")]
        return words + [word for kind, path in self.paths.items() for word in ("--path", f"{kind}={path}")]


class Plan(Model):
    """The whole file. A run begins after those that it names, which stand before it."""

    schema_version: Literal[1]
    runs: dict[str, PatchedRun]

    @model_validator(mode="after")
    def _in_order(self) -> Plan:
        before: list[str] = []
        for name, run in self.runs.items():
            for other in [*([run.after] if run.after else []), *run.alike]:
                if other not in before:
                    raise ValueError(f"runs.{name}: {other!r} is no run before it; those are {', '.join(before)}")
            if len(run.alike) == 1:
                raise ValueError(f"runs.{name}.alike: two runs or more, whose difference is the measure")
            before.append(name)
        return self

    def only(self, names: Iterable[str]) -> Plan:
        """The plan of the named runs and those that they begin with. PatchlaneError for a name that is not in it."""
        wanted = set[str]()
        for name in names:
            if name not in self.runs:
                raise PatchlaneError(f"no run is named {name!r}", f"choose of: {', '.join(self.runs)}")
            at: str | None = name
            while at is not None:
                wanted.add(at)
                at = self.runs[at].after
        return self.model_copy(update={"runs": {name: run for name, run in self.runs.items() if name in wanted}})


def read(path: Path = FILE) -> Plan:
    """The plan in the file. Raises PatchlaneError with file, line and field if it is malformed."""
    text, data = schema.read_yaml(path)
    try:
        return Plan.model_validate(_written_out(data))
    except ValidationError as error:
        raise schema.explain(path, text, error) from error


def _written_out(data: Any) -> Any:
    """The file's content with ``like`` replaced by the fields of the run that it names."""
    runs = data.get("runs") if isinstance(data, dict) else None
    if not isinstance(runs, dict):
        return data  # which the models then refuse
    found = dict[str, Any]()
    for name, run in runs.items():
        other = run.pop("like", None) if isinstance(run, dict) and run.get("like") in found else None
        found[name] = _over(found[other], run) if other else run
    return data | {"runs": found}


def _over(model: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    return model | {k: {**model.get(k, {}), **v} if isinstance(v, dict) else v for k, v in run.items()}
