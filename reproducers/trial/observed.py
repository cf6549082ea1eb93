"""What an arm observed, as the runner received and judged it: the arm only measures.

The messages come over a pipe of their own, each with its number and an HMAC with the run's secret, so nothing that is
printed counts, and a message too many or out of order is an error of the arm.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from pydantic import ValidationError

from patchlane.base.files import parsed_json
from reproducers.probe.arm.channel import SECRET_BYTES
from reproducers.probe.checks import Check, judge
from reproducers.record import receipt
from reproducers.record.receipt import Facts
from reproducers.trial import rulings

FORGED = "a message on the record's channel that the probe did not write"


class Unlimited(ValueError):
    """A check with a limit that is no finite number; the reproducer's fault."""


class Inbox:
    """The runner's end of one arm's channel. ``passed`` are the descriptors for the child.

    ``begin`` gets the stamp, the first line of the arm's log, as it comes. At the first check of which ``until`` holds
    ``enough`` is set, and ``ended_at`` is that check.
    """

    def __init__(self, begin: Callable[[str], None], until: Callable[[receipt.Check], bool] | None = None) -> None:
        self._begin, self._until, self.enough = begin, until, threading.Event()
        self.ended_at: receipt.Check | None = None
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._in, out = os.pipe()
        told, tell = os.pipe()
        os.write(tell, self._secret)
        os.close(tell)
        self.passed = (told, out)
        self.fault = ""
        self._messages: list[tuple[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)

    def listen(self) -> None:
        """Call once the child has its descriptors."""
        for number in self.passed:
            os.close(number)
        self._reader.start()

    def drop(self) -> None:
        """Give everything back where no child was started."""
        for number in (self._in, *self.passed):
            os.close(number)

    def close(self) -> None:
        """Wait for the last message; call after the arm's end."""
        self._reader.join(timeout=10)

    def _read(self) -> None:
        with os.fdopen(self._in, "rb") as source:
            for line in source:
                if not self.fault:
                    self._take(line)

    def _take(self, line: bytes) -> None:
        code, _, text = line.rstrip(b"\n").partition(b" ")
        due = hmac.new(self._secret, text, "sha256").hexdigest().encode()
        if not hmac.compare_digest(code, due):
            self.fault = FORGED
            return
        before = self._messages[-1][0] if self._messages else ""
        try:
            number, kind, body = parsed_json(text)
        except (ValueError, TypeError) as error:
            self.fault = f"{FORGED}: {error}"
            return
        if number != len(self._messages) or kind not in FOLLOWS[before]:
            self.fault = f"{FORGED}: {kind} number {number} after {before or 'none'}"
            return
        self._messages.append((kind, body))
        if kind == "stamp":
            self._begin(_line("stamp", body))
        elif kind == "check" and self._until and not self.ended_at:
            self._consider(body, self._until)

    def _consider(self, body: Any, until: Callable[[receipt.Check], bool]) -> None:
        """A check that cannot be judged is left to ``observed``, which names the fault."""
        with contextlib.suppress(LookupError, TypeError, ValueError, OverflowError, re.error, ValidationError):
            check = receipt.Check.model_validate(_check(body))
            if until(check):
                self.ended_at = check
                self.enough.set()

    def census(self) -> Facts:
        """What a census arm found, as far as it came."""
        found: Facts = {}
        for kind, body in self._messages:
            for call, facts in body.items() if kind == "census" else ():
                found.setdefault(call, {}).update(facts)
        return found

    def observed(self) -> Observed | None:
        """The judged record; None if the arm did not end its messages."""
        bodies = dict(self._messages)
        if "end" not in bodies:
            return None
        try:
            return _judged([body for kind, body in self._messages if kind == "check"], bodies)
        except Unlimited as error:
            self.fault = self.fault or str(error)
            return None
        except (LookupError, TypeError, ValueError, OverflowError, re.error) as error:
            self.fault = self.fault or f"{FORGED}: {type(error).__name__}: {error}"
            return None


FOLLOWS = {  # {kind of a message, "" for none: kinds that may follow}
    "": ("stamp",),
    "stamp": ("check", "census", "executed"),
    "check": ("check", "census", "executed"),
    "census": ("check", "census", "executed"),
    "executed": ("end",),
    "end": (),
}


@dataclass(frozen=True)
class Observed:
    """The arm's last line in the log, and why its record counts for nothing, "" if it counts.

    ``misused``: of a call that the probe could not take, whether a value of the tree was at fault; None without one.
    """

    line: str
    fault: str
    misused: bool | None = None


def _judged(checks: list[dict[str, Any]], bodies: dict[str, Any]) -> Observed:
    end = bodies["end"]
    made = [_check(fields) for fields in checks]
    outcome, reason = judge([Check(**fields) for fields in made])
    fault = f"code under test changed {', '.join(end['changed'])}" if end["changed"] else ""
    if end["outcome"] in ("bug", "healthy"):
        if end["outcome"] != outcome and not fault:
            fault = f"the arm said {end['outcome']}, its checks say {outcome}: {reason}"
    else:
        outcome, reason = end["outcome"], end["reason"]
    record = {
        "outcome": outcome,
        "reason": reason,
        "remedy": end["remedy"],
        "sentinel": "BUG_REPRODUCED" if outcome == "bug" else None,
        "checks": made,
        "executed": bodies["executed"],
    }
    misused = end.get("misused")
    return Observed(_line("record", record), fault, misused and bool(misused["measured"]))


def _check(sent: dict[str, Any]) -> dict[str, Any]:
    """The check with its state. A check of a call has ``raised``: None, or the exception's types, message, files."""
    fields = {name: value for name, value in sent.items() if name != "raised"}
    bug = fields["role"] == "bug"
    if "raised" in sent:
        raised = sent["raised"]
        fields["measured"] = (
            f"{raised['types'][0]}: {raised['message']}".splitlines()[0][:200] if raised else "returned"
        )
        state = "healthy" if raised is None else "bug" if bug and _matches(raised, fields["signature"]) else "different"
    elif fields["role"] in ("digest", "note"):
        state = "noted" if fields["measured"] is not None else "skipped"
    else:
        return _measured(fields)
    if fields["role"] == "guard":
        state = "passed" if state == "healthy" else "failed"
    return fields | {"measured": rulings.recorded(fields["measured"]), "state": state}


def _measured(fields: dict[str, Any]) -> dict[str, Any]:
    """A check on a number with its state. Raises Unlimited if a limit is no finite number."""
    limits = {name: float(fields[name]) for name in ("limit", "bug_above") if fields[name] is not None}
    for name, value in limits.items():
        if not isfinite(value):
            raise Unlimited(f"check {fields['name']}: its {name} is {value}, so that nothing fails it")
    state = rulings.by_number(fields["role"], float(fields["measured"]), limits["limit"], limits.get("bug_above"))
    return fields | {"measured": rulings.recorded(fields["measured"]), "state": state}


def _matches(raised: dict[str, Any], signature: dict[str, str]) -> bool:
    """As ``Signature.matches``."""
    return (
        signature["exception"] in raised["types"]
        and re.search(signature["message"], raised["message"]) is not None
        and any(name.endswith("/" + signature["frame"]) for name in raised["files"])
    )


def _line(kind: str, body: dict[str, Any]) -> str:
    return json.dumps({"patchlane": kind, **body}, sort_keys=True)
