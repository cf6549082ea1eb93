"""A recipe from its name or its size, a YAML file and ``--set``, each over what stands before it, and back as YAML."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from model.definition.recipes import RECIPES, Recipe, for_size, known
from model.families.sizes import SIZES
from model.kinds.run import Options
from patchlane.base.errors import PatchlaneError
from reproducers.record.schema import line_of, read_yaml

SHOW = "python -m model.train SIZE --show-recipe prints all fields, of the recipe and of the run"


def asked(name: str | None, file: Path | None, assignments: Sequence[str] = ()) -> tuple[Recipe, Options]:
    """The recipe, whole: of ``name`` (a recipe's or a size's), then ``file``'s fields, then ``assignments``
    ("FIELD=VALUE"); and the options of the run, of the assignments alone.

    A file needs no name beside it if it says its size. Raises PatchlaneError with a line for each fault, which names
    the file and line, or ``--set``, and the field.
    """
    text, given = _read(file) if file else ("", {})
    set_by_hand = dict(_assigned(one) for one in assignments)
    of_run = {field: set_by_hand.pop(field) for field in Options.model_fields if field in set_by_hand}
    size = (given | set_by_hand).get("size")
    if name is None and not isinstance(size, str):
        raise PatchlaneError(
            f"{file}: it has no size" if file else "neither a size nor a recipe is named",
            "python -m model.train SIZE --recipe FILE" if file else "python -m model.train --list names recipes",
        )
    base = _named(name if name is not None else str(size))
    if name is not None and size is not None and size != base.size:
        raise PatchlaneError(f"size {size!r} is not that of {name}, {base.size}", "name only one of the two")
    rows = []
    try:
        options = Options.model_validate(of_run)
    except ValidationError as error:
        rows += [f"--set {_told(fault)}" for fault in error.errors()]
    try:
        recipe = Recipe.model_validate(base.model_dump() | given | set_by_hand).whole()
    except ValidationError as error:
        for fault in error.errors():
            place, field = "", str(next(iter(fault["loc"]), ""))
            if field in set_by_hand:
                place = "--set "
            elif field in given:
                place = f"{file}:{line_of(text, (field,))}: "
            elif not field and file:  # fields that do not go together
                place = f"{file}: "
            of_the_run = field in Options.model_fields
            rows.append(place + (f"{field}: of the run, by --set {field}=VALUE alone" if of_the_run else _told(fault)))
    if rows:
        raise PatchlaneError("\n".join(rows), SHOW)
    return recipe, options


def _told(fault: Any) -> str:
    """A fault of a model's field as text: where, and what pydantic says of it."""
    if fault["type"] == "extra_forbidden":
        return f"{'.'.join(map(str, fault['loc']))}: neither the recipe nor the run has such a field"
    return ": ".join(filter(None, [".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, ")]))


def as_yaml(recipe: Recipe) -> str:
    """The recipe as a file that ``asked`` reads back to the same one; how a run computes beside it, as comments."""
    fields = recipe.model_dump(mode="json", exclude_none=True)
    text: str = yaml.safe_dump(fields, sort_keys=False, default_flow_style=None)
    ways = (f"# {name}: {json.dumps(value)}" for name, value in Options().model_dump().items())
    return "\n".join(
        [f"{text}# of the run, by --set alone; null: what was measured to pay, or upstream's default", *ways, ""]
    )


def _named(name: str) -> Recipe:
    known(name, SIZES)
    return RECIPES.get(name) or for_size(name)


def _read(file: Path) -> tuple[str, dict[str, Any]]:
    if file.is_dir():
        raise PatchlaneError(f"{file}: a folder", f"ls {shlex.quote(str(file))}, and name a file")
    if not file.exists():
        raise PatchlaneError(f"{file}: there is no such file", SHOW)
    text, given = read_yaml(file)
    if not isinstance(given, dict) or not all(isinstance(field, str) for field in given):
        raise PatchlaneError(f"{file}:1: not fields of a recipe, FIELD: VALUE", SHOW)
    return text, given


def _assigned(text: str) -> tuple[str, Any]:
    """ "weight_decay=0.05" as its field and value, which is YAML. Raises PatchlaneError for other text."""
    field, equals, value = text.partition("=")
    try:
        if not (field and equals):
            raise ValueError("no value")
        return field, yaml.safe_load(value)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise PatchlaneError(f"--set {text}", "--set FIELD=VALUE, for instance --set weight_decay=0.05") from error
