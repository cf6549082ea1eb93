"""loss.png, throughput.png and diagnosis.png of a run, from its metrics.jsonl alone."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model.records import history
from model.records.records import Diagnosis, Phases, Record, Train
from model.reports import plotting
from model.reports.plotting import BLUE, GREEN, GREY, MORE, ORANGE, RED
from patchlane.base import disk
from patchlane.base.errors import PatchlaneError

MARKERS = "osD^vPX"  # of held-out sets
MOST = 20_000  # steps that are drawn, some ten a pixel
LEGIBLE = 32  # lines that a legend names
PHASES = {"forward_backward": BLUE, "optimizer": ORANGE, "data": GREEN, "other": GREY}


def draw(run_dir: Path, log: bool = False, out: Path | None = None) -> list[Path]:
    """Draw the pictures into ``out``, by default ``run_dir``; ``log``: logarithmic loss axis.

    Raises PatchlaneError without a step.

    There is a ``diagnosis.png`` if a step was diagnosed. Of a run of more than ``MOST`` steps some are drawn.
    """
    records = history.read(run_dir, MOST)
    steps = history.train(records)
    if not steps:
        raise PatchlaneError(f"{run_dir / history.NAME} has no training step yet", "wait for the first step")
    name, diagnosed = run_dir.resolve().name, history.diagnoses(records)
    out = out or run_dir
    with disk.writing(out, f"cp -r {run_dir} COPY && python -m model.pictures COPY"):
        drawn = [_loss(out, name, records, steps, log), _throughput(out, name, records, steps)]
        return [*drawn, _diagnosis(out, name, diagnosed)] if diagnosed else drawn


def at_the_end(run_dir: Path) -> None:
    """Draw the pictures of a run that ends, if it took a step, and print their names. What hinders that hinders no run:
    it is said, and they can be drawn at any time."""
    try:
        for picture in draw(run_dir) if history.any_step(run_dir) else []:
            print(picture)
    except PatchlaneError as error:
        again = f"{error.remedy}, then python -m model.pictures {run_dir}"
        print(f"no pictures: {error.what}\n  fix: {again}", file=sys.stderr)


def band(run: Path, seeds: Sequence[Path], path: Path) -> Path:
    """``run``'s losses in the band between the least and the greatest of ``seeds``, smoothed alike, drawn to ``path``.

    Below, the same less the seeds' mean. The band ends where fewer than two seeds have a step.
    """
    figure, (panel, less) = plotting.figure(2, f"{run.resolve().name} among {len(seeds)} other seeds", 8.5)
    curves = [_smooth(history.train(history.read(folder))) for folder in (run, *seeds)]
    steps = [step for step in sorted(set().union(*curves[1:])) if sum(step in one for one in curves[1:]) > 1]
    among = [[one[step] for one in curves[1:] if step in one] for step in steps]
    means = dict(zip(steps, map(statistics.fmean, among), strict=True))
    for below, origin in ((panel, dict.fromkeys(steps, 0.0)), (less, means)):
        edges = [[edge(losses) - origin[s] for s, losses in zip(steps, among, strict=True)] for edge in (min, max)]
        below.fill_between(steps, *edges, color=GREY, alpha=0.35, linewidth=0, label="other seeds, least to greatest")
        own = [step for step in steps if step in curves[0]]
        below.plot(own, [curves[0][step] - origin[step] for step in own], color=BLUE, label="training")
    late = steps[len(steps) // 10 :]  # past the first fall, which would set the scale
    far = [curves[0][step] - means[step] for step in late if step in curves[0]]
    if reach := 3 * max(map(abs, far), default=0.0):
        less.set_ylim(-reach, reach)
    _held_out(panel, history.read(run))
    for folder in seeds:
        held = history.valid(history.read(folder))
        panel.plot([r.step for r in held], [r.loss for r in held], color=GREY, marker="x", linestyle="", zorder=2)
    panel.set_yscale("log")
    panel.set_ylabel("loss (nats per token)")
    less.set_ylabel("less the other seeds' mean")
    less.set_xlabel("optimizer step")
    plotting.legend(panel)
    with disk.writing(path.parent, "--picture FILE on a disk with room"):
        return plotting.save(figure, path)


def _smooth(steps: Sequence[Train]) -> dict[int, float]:
    """{step: median of a window of losses}."""
    good = [r for r in steps if r.finite]
    curve = plotting.smoothed([r.loss for r in good], plotting.window(len(good)))
    return dict(zip((r.step for r in good), curve, strict=True))


def _diagnosis(out: Path, name: str, diagnosed: list[Diagnosis]) -> Path:
    """A line a layer, a kind of parameter or a rank."""
    figure, panels = plotting.figure(4, f"{name}: by layer, kind and rank", 12.5)
    x = [record.step for record in diagnosed]
    shown: dict[str, list[dict[str, float]]] = {
        "fullest expert\n(of the mean)": [record.router_load for record in diagnosed],
        "largest attention logit": [record.attention_logits for record in diagnosed],
        "gradient norm": [record.gradient_norms for record in diagnosed],
        "a rank's own seconds": [{f"{n}": s for n, s in enumerate(record.rank_seconds)} for record in diagnosed],
    }
    for panel, (label, values) in zip(panels, shown.items(), strict=True):
        lines = list(dict.fromkeys(key for one in values for key in one))
        for line, color in zip(lines, plotting.colors(len(lines)), strict=True):
            y = [one.get(line, math.nan) for one in values]
            panel.plot(x, y, color=color, linewidth=1.1, marker=".", markersize=3, label=line)
        panel.set_ylabel(label)
        if lines and len(lines) <= LEGIBLE:
            panel.legend(loc="center left", bbox_to_anchor=(1, 0.5), ncols=-(-len(lines) // 16), frameon=False)
    panels[2].set_yscale("log")
    panels[-1].set_xlabel("optimizer step")
    return plotting.save(figure, out / "diagnosis.png")


def _loss(out: Path, name: str, records: list[Record], steps: list[Train], log: bool) -> Path:
    figure, (panel,) = plotting.figure(1, f"{name}: loss", 5.5)
    good = [r for r in steps if r.finite]
    x, y = [r.step for r in good], [r.loss for r in good]
    panel.plot(x, y, color=BLUE, alpha=0.4, linewidth=0.8)
    width = plotting.window(len(x))
    panel.plot(x, plotting.smoothed(y, width), color=BLUE, label=f"training (median of {width} steps)")
    _mtp(panel, good)
    _held_out(panel, records)
    entropy = history.entropy(records)
    if entropy is not None:
        label = f"unigram entropy {entropy:.2f}"
        panel.axhline(entropy, color=GREY, linestyle="--", linewidth=1.2, label=label)
    plotting.mark(panel, [e.step for e in history.events(records, "resumed")], "resumed", GREY)
    plotting.mark(panel, [r.step for r in steps if not r.finite], "not finite", RED)
    plotting.mark(panel, [e.step for e in history.events(records, "rewind")], "went back here", ORANGE)
    panel.set_ylabel("loss (nats per token)")
    panel.set_xlabel("optimizer step")
    if log:
        panel.set_yscale("log")
    _tokens_axis(panel, steps)
    plotting.legend(panel)
    return plotting.save(figure, out / "loss.png")


def _mtp(panel: Any, good: Sequence[Train]) -> None:
    """The multi-token-prediction loss, where the model has such a head."""
    points = [(r.step, r.mtp_loss) for r in good if r.mtp_loss is not None and math.isfinite(r.mtp_loss)]
    if points:
        width = plotting.window(len(points))
        curve = plotting.smoothed([loss for _, loss in points], width)
        panel.plot([step for step, _ in points], curve, color=GREEN, linewidth=1.1, label="multi-token prediction")


def _held_out(panel: Any, records: list[Record]) -> None:
    """The held-out loss of the whole, and a thinner curve for each set that has a name."""
    for at, name in enumerate([None, *history.held_out_names(records)]):
        held = [r for r in history.valid(records, name) if math.isfinite(r.loss)]
        if not held:
            continue
        color, width = (ORANGE, 1.5) if name is None else (MORE[(at - 1) % len(MORE)], 1.0)
        label = f"held out{'' if name is None else f', {name}'}, last {held[-1].loss:.3f}"
        panel.plot(
            [r.step for r in held],
            [r.loss for r in held],
            label=label,
            color=color,
            linewidth=width,
            marker=MARKERS[at % len(MARKERS)],
            markersize=4,
            zorder=3,
        )


def _tokens_axis(panel: Any, steps: Sequence[Train]) -> None:
    """Tokens seen, above the axis of steps; all steps count as many tokens as the last one."""
    each = steps[-1].tokens / max(steps[-1].step, 1)
    if not each:
        return
    unit, word = (1e9, "billion") if steps[-1].tokens >= 2e9 else (1e6, "million")
    axis = panel.secondary_xaxis("top", functions=(lambda s: s * each / unit, lambda t: t * unit / each))
    axis.set_xlabel(f"tokens seen ({word})")
    axis.spines["top"].set_visible(False)


def _throughput(out: Path, name: str, records: list[Record], steps: list[Train]) -> Path:
    figure, (speed, phases) = plotting.figure(2, f"{name}: throughput", 7.5)
    x, rate = [r.step for r in steps], [r.tokens_per_s_per_gpu for r in steps]
    middle = statistics.median(rate)
    speed.plot(x, rate, color=BLUE, alpha=0.3, linewidth=0.8, marker=".", markersize=3)
    speed.plot(x, plotting.smoothed(rate, plotting.window(len(x))), color=BLUE)
    label = f"median {middle:,.0f}; {statistics.median(r.tflops_built for r in steps):.3g} TFLOP/s of matrix products"
    speed.axhline(middle, color=GREY, linestyle="--", linewidth=1.2, label=label)
    speed.set_ylim(0, 1.3 * max(rate))
    speed.set_ylabel(f"tokens / s / {'GPU' if steps[-1].gpu else 'CPU rank'}")
    speed.yaxis.set_major_formatter("{x:,.0f}")
    _stack(phases, x, [r.seconds for r in steps])
    plotting.mark(speed, [e.step for e in history.events(records, "resumed")], "resumed", GREY)
    plotting.legend(speed)
    return plotting.save(figure, out / "throughput.png")


def _stack(panel: Any, x: Sequence[int], seconds: Sequence[Phases]) -> None:
    """Seconds of each phase, stacked; steps that compile may exceed the top."""
    shares = {phase: statistics.median(getattr(s, phase) for s in seconds) for phase in PHASES}
    labels = [f"{phase.replace('_', ' + ')}, median {value:.3g} s" for phase, value in shares.items()]
    rows = [[getattr(s, phase) for s in seconds] for phase in PHASES]
    panel.stackplot(x, *rows, labels=labels, colors=list(PHASES.values()), alpha=0.85, step="mid", linewidth=0)
    totals = sorted(s.total for s in seconds)
    panel.set_ylim(0, 1.5 * totals[int(0.95 * (len(totals) - 1))] or None)
    panel.set_ylabel("seconds a step")
    panel.set_xlabel("optimizer step")
    plotting.legend(panel, columns=2)
