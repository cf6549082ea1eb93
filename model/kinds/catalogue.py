"""All kernel paths, and the choice among them.

``choose`` reads the catalogue once, before anything is built, locked or compiled. Nothing chooses again later: a layer
runs the path that it is given, or raises.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from model.kinds import dsa, ends, mla, moe
from model.kinds.deepseek_v4 import attention, experts
from model.kinds.path import Choice, Code, Part, Path, Seam
from model.kinds.recurrent import m2rnn, mamba3
from model.kinds.run import Run, bf16, gpu
from patchlane.base.errors import CannotTestHere, PatchlaneError

logger = logging.getLogger("model.paths")
AUTO = "auto"  # what is asked for unless a path is named
NOTHING: Mapping[str, str] = {}
# of every layer; weight gradients first, for other paths change what theirs makes of linear layers
ALL_LAYERS = (
    Part(
        "wgrad",
        "weight gradients",
        (
            Path(
                "fused",
                needs=(gpu, bf16),
                code=Code("megatron.core.fusions.fused_weight_gradient:wgrad_gemm_accum", "general_gemm"),  # of pack 46
                seams=(mamba3.WGRAD,),
                install="model.layers.linear.wgrad:enable",
                settings={"gradient_accumulation_fusion": True},
            ),
            Path("added"),
        ),
    ),
    Part("norm", "norms before layers", (Path("te", needs=(gpu, bf16)), Path("torch"))),
)
PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        *(*ALL_LAYERS, *mamba3.PARTS, *m2rnn.PARTS, *mla.PARTS, *dsa.PARTS, *moe.PARTS, *ends.PARTS),
        *(*attention.PARTS, *experts.PARTS),
    )
}


def paths() -> dict[str, Path]:
    """{"kind=path": the path} of all."""
    return {f"{part.name}={path.name}": path for part in PARTS.values() for path in part.paths}


def seams(choices: Mapping[str, str] | None = None) -> list[Seam]:
    """The seams of a run with these paths, {kind: name}, each once; of all paths for None."""
    taken = paths() if choices is None else {kind: PARTS[kind].path(choices[kind]) for kind in PARTS if kind in choices}
    return list(dict.fromkeys(seam for path in taken.values() for seam in path.seams))


def asked(pairs: Iterable[str]) -> dict[str, str]:
    """``["mamba3=torch"]`` as {kind: path}. PatchlaneError with the choices for a kind or path that there is not."""
    named = dict(pair.partition("=")[::2] for pair in pairs)
    for kind, path in named.items():
        _known(kind, path)
    return named


def able(size: Any, run: Run, gone: Mapping[str, str] = NOTHING) -> dict[str, list[tuple[str, str | None]]]:
    """{kind: [(path, what it lacks here)]} of the size's ``path_parts``, best first; None: it lacks nothing.

    ``gone``: {"kind=path": why upstream's code cannot run it}.
    """
    parts = [PARTS[name] for name in size.path_parts]
    return {part.name: [(path.name, _lack(part, path, size, run, gone)) for path in part.paths] for part in parts}


def _lack(part: Part, path: Path, size: Any, run: Run, gone: Mapping[str, str]) -> str | None:
    if why := gone.get(f"{part.name}={path.name}"):
        return why
    if run.cuda_graphs and not path.graphs and run.paths.get(part.name) != path.name:
        return "no CUDA graph has captured it"
    return next(filter(None, (need(size, run) for need in path.needs)), None)


def choose(size: Any, run: Run, gone: Mapping[str, str] = NOTHING) -> dict[str, Choice]:
    """Every kind's path: the one that ``run`` asks for, else the first that lacks nothing; ``gone`` as ``able`` has it.

    PatchlaneError for a kind or path that there is not, or not in this size's architecture, CannotTestHere for one that
    is asked for and cannot run here.
    """
    for kind, path in run.paths.items():
        _known(kind, path)
        if kind not in size.path_parts:
            raise PatchlaneError(
                f"--path {kind}={path}: {size.name} has none",
                f"--path KIND=PATH, KIND one of {', '.join(size.path_parts)}",
            )
    return {kind: _choose(kind, run.paths.get(kind, AUTO), paths) for kind, paths in able(size, run, gone).items()}


def _known(kind: str, path: str) -> None:
    if kind not in PARTS:
        raise PatchlaneError(f"--path {kind}={path}", f"--path KIND=PATH, KIND one of {', '.join(PARTS)}")
    names = [AUTO, *(known.name for known in PARTS[kind].paths)]
    if path not in names:
        raise PatchlaneError(f"--path {kind}={path}", f"--path {kind}=PATH, PATH one of {', '.join(names)}")


def _choose(kind: str, wanted: str, found: list[tuple[str, str | None]]) -> Choice:
    lacks = dict(found)
    if wanted == AUTO:
        best = next(name for name, lack in found if lack is None)  # one of each kind's needs nothing
        better = found[: list(lacks).index(best)]
        return Choice(best, "; ".join(f"{name}: {lack}" for name, lack in better) or "the best there is")
    if lacks[wanted] is not None:
        raise CannotTestHere(f"--path {kind}={wanted}: {lacks[wanted]}", f"--path {kind}={AUTO}, or leave it out")
    return Choice(wanted, "asked for")


def announce(chosen: Iterable[tuple[str, str, Choice]]) -> None:
    """One line for each (layer, label, choice) in the log."""
    for layer, label, choice in chosen:
        logger.info("layer %s, %s: path %s, %s", layer, label, choice.name, choice.reason)
