"""The command line of model.train, which has few options: fields are set by ``--set``."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from model.definition.recipes import Recipe
from model.kinds.run import Options
from patchlane.base.errors import PatchlaneError

INVARIANTS = 200  # steps from one check to the next where --invariants names none
# options whose name is not that of a field
SHORT = {"ep": "expert_parallel", "pp": "pipeline_parallel", "fp32": "bf16", "early_reads": "late_reads"}


class Command(TyperCommand):
    """Names --set for an option that is a field."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does, which has no option whose value may be left out. Raises PatchlaneError for a field as an
        option."""
        args = [
            f"{arg}={INVARIANTS}" if arg == "--invariants" and not (after and after[0].isdigit()) else arg
            for arg, after in ((arg, args[at + 1 : at + 2]) for at, arg in enumerate(args))
        ]
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)  # of click's NoSuchOption, or of the one that typer brings
            if type(error).__name__ != "NoSuchOption" or option is None:
                raise
            name = option.lstrip("-").removeprefix("no-").replace("-", "_")
            field = SHORT.get(name, name)
            if field not in Recipe.model_fields and field not in Options.model_fields:
                raise
            what = f"no option {option}: a field of the recipe, or of the run"
            raise PatchlaneError(what, f"--set {field}=VALUE") from error
