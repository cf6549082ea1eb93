"""The distance to the limit: what each kind of work took, against the least that this GPU needs for it.

The least time of a kind is its FLOPs over the fastest product that was measured on the same GPU in the same run, or its
bytes over the copy (``model.profile.ceilings``, ``model.profile.work``). A ratio is how many times longer it took. What
overlaps counts twice, in the seconds as in the kinds of a profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from model.profile.ceilings import Ceilings
from model.profile.kernel_kinds import COMMUNICATION
from model.profile.work import LINKS, NO_SIZES, Work

HEAD = ("kind of work", "ms a step", "least ms", "by", "ratio")
NONE = "–"
COUNTED = "all that is counted"


class Limit(BaseModel):
    """Seconds a step of one kind of work, and the least; ``why`` where there is no least."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kinds: list[str]
    seconds: float
    least: float | None = None
    by: Literal["products", "memory"] | None = None
    why: str | None = None

    @property
    def ratio(self) -> float | None:
        """How many times the least it took."""
        return self.seconds / self.least if self.least else None


def limits(seconds: Mapping[str, float], works: Sequence[Work], ceilings: Ceilings) -> list[Limit]:
    """``seconds``: of each kind of kernel, a step. What took longest comes first; what took no time is left out."""
    found = [_limit(work, sum(seconds.get(kind, 0.0) for kind in work.kinds), ceilings) for work in works]
    counted = {kind for work in works for kind in work.kinds}
    for kind, took in seconds.items():
        if kind not in counted:
            why = LINKS if kind.startswith(COMMUNICATION) else NO_SIZES
            found.append(Limit(name=kind, kinds=[kind], seconds=took, why=why))
    return sorted((limit for limit in found if limit.seconds), key=lambda limit: -limit.seconds)


def _limit(work: Work, took: float, ceilings: Ceilings) -> Limit:
    limit = Limit(name=work.name, kinds=list(work.kinds), seconds=took)
    by: Literal["products", "memory"] = "products" if work.moved is None else "memory"
    amount = work.flops if work.moved is None else work.moved
    ceiling = ceilings.flops_per_second if work.moved is None else ceilings.bytes_per_second
    if not amount:  # layers that the rank's stage does not have
        return limit.model_copy(update={"why": NO_SIZES})
    if ceiling is None:
        return limit.model_copy(update={"why": ceilings.skipped})
    return limit.model_copy(update={"least": amount / ceiling, "by": by})


def total(found: Sequence[Limit]) -> Limit | None:
    """All kinds that have a least time, as one; None without any."""
    counted = [limit for limit in found if limit.least is not None]
    if not counted:
        return None
    return Limit(
        name=COUNTED,
        kinds=[kind for limit in counted for kind in limit.kinds],
        seconds=sum(limit.seconds for limit in counted),
        least=sum(limit.least or 0.0 for limit in counted),
    )


def rows(found: Sequence[Limit]) -> list[tuple[str, ...]]:
    """The cells under ``HEAD``, with all that is counted in the last row; "by" says why there is no least time."""
    every = [*found, *([whole] if (whole := total(found)) else [])]
    return [
        (
            limit.name,
            f"{limit.seconds * 1e3:.2f}",
            NONE if limit.least is None else f"{limit.least * 1e3:.2f}",
            limit.by or limit.why or "",
            NONE if limit.ratio is None else f"{limit.ratio:.2f}",
        )
        for limit in every
    ]


def said(ceilings: Ceilings) -> str:
    """The ceilings in one line."""
    best = max(ceilings.products, key=lambda product: product.flops_per_second, default=None)
    parts = []
    if best is not None:
        shape = f"{best.rows} x {best.inner} x {best.columns}, the fastest of {len(ceilings.products)}"
        parts.append(f"bf16 products {best.flops_per_second / 1e12:.1f} TFLOP/s ({shape})")
    if ceilings.copied is not None:
        copied = ceilings.copied
        parts.append(f"copy {copied.bytes_per_second / 1e12:.2f} TB/s read and written ({copied.size / 2**20:.0f} MiB)")
    if ceilings.skipped is not None:
        parts.append(ceilings.skipped)
    return "; ".join(parts)


def markdown(found: Sequence[Limit], ceilings: Ceilings) -> list[str]:
    """Lines of Markdown: the ceilings, then the table, if there is one."""
    if not found:
        return ["", f"No distance to the limit: {said(ceilings)}."]
    lines = ["", f"Distance to the limit. This GPU's ceilings, measured after the steps: {said(ceilings)}.", ""]
    lines += ["| " + " | ".join(HEAD) + " |", "|---|---:|---:|---|---:|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows(found))]
