"""How far two right computations of one case may lie apart: measured by moving its inputs by an ulp, never guessed."""

from __future__ import annotations

import torch

from reproducers.studies.hunt import kit

DRAWS = 5
# largest error over noise that healthy functions had is 9 (docs/hunt.md); a bug that changes what is computed has 1e3
MARGIN = 32.0


def noise(bench: kit.Bench) -> dict[str, float]:
    """{"output 0", "gradient of x", ...: the largest change} over runs with each input moved by an ulp.

    With a reference: of the reference in fp64 and in the operands' dtype, so that rounding inside it counts too, as far
    as any eager code has it; without one: of the function itself.
    """
    if bench.reference is None:
        base = bench.passes()
        others = [bench.passes(given=bench.given(draw)) for draw in range(1, DRAWS + 1)]
    else:
        base = bench.eager(torch.float64)
        others = [bench.eager(dtype, draw) for draw in range(DRAWS + 1) for dtype in (torch.float64, bench.dtype)]
    return {name: max(kit.error(one[name], want) for one in others) for name, want in base.items()}


def limit(name: str, want: torch.Tensor, noises: dict[str, float], dtype: torch.dtype) -> float:
    """The largest healthy difference of a pair, whose name begins with the quantity it is of.

    At least as for a change of an ulp of ``dtype`` in its largest value, or of an ulp's square where all are nearly 0.
    """
    ulp = torch.finfo(dtype).eps * want.abs().max().item() if want.numel() else 0.0
    known = next((noises[known] for known in noises if name.split(":")[0] == known), 0.0)
    return MARGIN * float(max(known, ulp, torch.finfo(dtype).eps ** 2))
