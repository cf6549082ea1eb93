"""Nothing is claimed without a receipt, and no receipt is older than what it speaks for."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from reproducers.base.errors import PatchlaneError
from reproducers.desk.rules.case import Case
from reproducers.desk.rules.registry import Found, Skip, rule
from reproducers.desk.text.lookups import again
from reproducers.evidence.manifest import changed_since
from reproducers.evidence.receipts import newest


@rule("receipt-claim", "every number, host and version that the text names is in a receipt, and the text renders")
def claims(case: Case) -> Iterator[Found | Skip]:
    error = case.rendered
    if not isinstance(error, PatchlaneError):
        return
    absent = [lane for lane in case.pack.lanes if newest(case.pack, lane, case.receipts, case.pack.filing_pin) is None]
    if any(f"no receipt of the {lane} lane" in error.what for lane in absent):
        yield Skip(f"{error.what}, so its text cannot be read yet: {error.remedy}")
    else:
        yield Found(case.body, _template_line(error), error.what, error.remedy)


def _template_line(error: BaseException) -> int:
    """The line of ``body.md.j2`` that an error came from, by the frames that jinja2 leaves for it."""
    line, trace, cause = 1, error.__traceback__, error.__cause__
    lines = [*_frames(trace), *(_frames(cause.__traceback__) if cause else [])]
    if lines:
        line = lines[-1]
    stated = getattr(cause, "lineno", None)
    return stated if isinstance(stated, int) else line


def _frames(trace: TracebackType | None) -> list[int]:
    found = []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            found.append(trace.tb_lineno)
        trace = trace.tb_next
    return found


@rule("receipt-stale", "the newest receipts are of the reproducer and the patch as they are now")
def stale(case: Case) -> Iterator[Found | Skip]:
    for lane, found in case.entry.lanes.items():
        for name in found.changed_since:
            what = f"the {lane} receipt of {found.taken} is of an earlier {name}"
            yield Found(case.pack.folder / name, 1, what, _again(case, lane))
    pin = case.pack.filing_pin
    for lane in case.pack.lanes if pin != "live" else []:
        path = newest(case.pack, lane, case.receipts, pin)
        for name in changed_since(case.pack, path) if path else []:
            what = f"the {lane} receipt at pin {pin} is of an earlier {name}"
            yield Found(case.pack.folder / name, 1, what, again(case.pack, lane, pin))


@rule("receipt-age", "no newest receipt is past the day until which it is valid")
def age(case: Case) -> Iterator[Found | Skip]:
    for lane, found in case.entry.lanes.items():
        if found.valid_until < case.today:
            what = f"the {lane} receipt of {found.taken} was valid until {found.valid_until}"
            yield Found(case.newest[lane], 1, what, _again(case, lane))


def _again(case: Case, lane: str) -> str:
    return again(case.pack, lane, "live")
