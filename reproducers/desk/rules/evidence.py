"""A text claims nothing without a receipt, and no receipt is older than the files that it speaks for."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from patchlane.base.errors import PatchlaneError
from reproducers.desk.rules.case import Case
from reproducers.desk.rules.registry import Breach, Skip, rule
from reproducers.desk.text.lookups import again
from reproducers.evidence.manifest import changed_since
from reproducers.evidence.receipts import newest


@rule("receipt-claim", "every number, host and version that the text names is in a receipt, and the text renders")
def claims(case: Case) -> Iterator[Breach | Skip]:
    error = case.rendered
    if not isinstance(error, PatchlaneError):
        return
    absent = [lane for lane in case.pack.lanes if newest(case.pack, lane, case.receipts, case.pack.filing_pin) is None]
    if any(f"no receipt of the {lane} lane" in error.what for lane in absent):
        yield Skip(f"{error.what}, so its text cannot be read yet: {error.remedy}")
    else:
        yield Breach(case.body, _template_line(error), error.what, error.remedy)


def _template_line(error: BaseException) -> int:
    """The line of ``body.md.j2`` that an error came from, by jinja2's frames in its traceback."""
    cause = error.__cause__
    lines = [1, *_frames(error.__traceback__), *(_frames(cause.__traceback__) if cause else [])]
    stated = getattr(cause, "lineno", None)
    return stated if isinstance(stated, int) else lines[-1]


def _frames(trace: TracebackType | None) -> list[int]:
    lines = []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return lines


@rule("receipt-stale", "the newest receipts are of the reproducer and the patch as they are now")
def stale(case: Case) -> Iterator[Breach | Skip]:
    for lane, proof in case.entry.lanes.items():
        for name in proof.changed_since:
            what = f"the {lane} receipt of {proof.taken} is of an earlier {name}"
            yield Breach(case.pack.folder / name, 1, what, again(case.pack, lane, "live"))
    pin = case.pack.filing_pin
    for lane in case.pack.lanes if pin != "live" else []:
        path = newest(case.pack, lane, case.receipts, pin)
        for name in changed_since(case.pack, path) if path else []:
            what = f"the {lane} receipt at pin {pin} is of an earlier {name}"
            yield Breach(case.pack.folder / name, 1, what, again(case.pack, lane, pin))


@rule("receipt-age", "no newest receipt is past the day until which it is valid")
def age(case: Case) -> Iterator[Breach | Skip]:
    for lane, proof in case.entry.lanes.items():
        if proof.valid_until < case.today:
            what = f"the {lane} receipt of {proof.taken} was valid until {proof.valid_until}"
            yield Breach(case.newest[lane], 1, what, again(case.pack, lane, "live"))
