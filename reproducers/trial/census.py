"""What a patch changes beside the bug: facts of a census on both trees, compared.

The rule is pass to pass: what the pristine tree does healthily the patched tree does the same. A fact that the pristine
tree does not show, or in which it is worse, says nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from patchlane.base.wording import count
from reproducers.probe.arm.census import (
    AMISS,
    AS,
    CHANGED,
    DEFINES,
    HIDDEN,
    HOLDS,
    IMPORTED,
    LEFT_BEHIND,
    MADE,
    MARKS,
    MOVED,
    OPTION,
    OTHERWISE,
    PAST,
    SAYS,
    SETS,
    TWICE,
    UNBOUND,
    UNDEFINED,
)
from reproducers.record.receipt import Census, Difference, Facts
from reproducers.record.schema import Meant

PATIENCE = 4  # times as long as other arms may take
LINE = "census: "  # begins what is told of a census beside the verdict
BEGUN = f"{LINE}both trees again, each call in other ways"
UNSEEN = "no call of touched code was seen on both trees"
EVERYWHERE, CHECKOUT = "all calls", "in a checkout"
OF = "of"  # the fact that tells a call's sizes
RAISES = "raises"
HELD, ENTRIES, LEFT = 4, 40, 2  # tensors, and entries of containers, that a fix may keep, whatever was called
GROWTH, TIMES = 0.4, 4.0  # of the exponent of the largest tensor and of the peak; of the largest tensor's size
Taken = dict[str, Any]  # {fact: what was found} of one call
LISTS = (
    CHANGED,
    SETS,
    HIDDEN,
    "changes of its arguments",
    "class attributes changed",
    "shares memory with",
    "unnoticed when changed before backward",
    UNBOUND,
    AMISS,
)
LOST = {  # {fact: the fact that says what of the pristine tree it may not name}
    UNDEFINED: DEFINES,
    LEFT_BEHIND: MOVED,
}
SAME = ("ends", "parameters", "buffers", "state dict", "collectives")
MEASURED = ("tensors alive after backward", PAST)  # in parts, of which one may be rounding
SAID = (SAYS, "says again")
NOTHING: Taken = {HOLDS: 0, CHANGED: [], SAYS: {}, AMISS: []}  # of a file that the patched tree alone imports
GROWING = re.compile(r"(largest tensor|peak) with (\d+)(?: for (\d+))?")


def compare(pristine: Facts, patched: Facts, meant: Iterable[Meant] = ()) -> Census:
    """Facts of the pristine tree that do not hold of the patched one, in the order in which they were taken."""
    found, facts, meant = list[Difference](), 0, list(meant)
    held = (call for call, taken in patched.items() if HOLDS in taken and HOLDS not in pristine.get(call, {}))
    new = {call: NOTHING | pristine.get(call, {}) for call in held}
    for call, all_before in (pristine | new).items():
        all_after = patched.get(call, {})
        if all_before.get(OF) != all_after.get(OF):  # another call: the first of its kind went elsewhere
            continue
        for name, before in all_before.items():
            if name == OF:
                continue
            facts += name in all_after
            if name in all_after and (said := _differs(name, before, all_after[name], all_before, all_after)):
                reason = next((row.reason for row in meant if row.covers(call, name, said[1])), None)
                found.append(Difference(call=call, fact=name, pristine=said[0], patched=said[1], meant=reason))
    return Census(facts=facts, differences=found, untaken="" if facts else UNSEEN)


def elsewhere(said: str) -> Difference:
    """The difference of a fix that holds in a folder of installed packages alone."""
    return Difference(call=EVERYWHERE, fact=CHECKOUT, pristine="healthy", patched=said)


def is_elsewhere(difference: Difference) -> bool:
    return (difference.call, difference.fact) == (EVERYWHERE, CHECKOUT)


def line(arm: str, facts: Facts) -> str:
    """The entry of a log with an arm's facts."""
    return f"[census] {json.dumps({'patchlane': 'census', 'arm': arm, 'facts': facts}, sort_keys=True)}"


def unmade(facts: Facts) -> list[str]:
    """Of calls that ended, those that could not be made again, of which less is known: each with the reason."""
    rows = {call: str(taken.get(MADE, AS)) for call, taken in facts.items() if not _raised(taken)}
    return [f"{call.partition('(')[0]} ({said.partition(': ')[2]})" for call, said in rows.items() if said != AS]


def told(census: Census) -> str:
    """A census in a line."""
    cut = [f"cut short: {census.cut}"] if census.cut else []
    if census.untaken:
        return "; ".join([f"{LINE}{census.untaken}", *cut])
    meant = len(census.differences) - len(census.strayed)
    said = f"{LINE}{count(census.facts, 'fact')} compared, {meant} otherwise as meant"
    return "; ".join([said, *(f"otherwise: {one}" for one in census.strayed), *cut])


def _differs(name: str, before: Any, after: Any, all_before: Taken, all_after: Taken) -> tuple[str, str] | None:
    """(before, after) where they differ as the rule has it; of a call that upstream did not end, what it leaves."""
    if name != CHANGED and _raised(all_before) and not _raised(all_after):
        return None
    if isinstance(after, str) and not isinstance(before, str):  # the patched tree could not tell
        return _short(before), after
    if name in LISTS:
        more = sorted(set(after) - set(before))
        return ("not so", ", ".join(more)) if more else None
    if name == MARKS:
        gone = sorted(set(before) - set(after))
        return (", ".join(gone), "not so") if gone else None
    if name in LOST:
        lost = sorted((set(after) - set(before)) & set(all_before.get(LOST[name], ())))
        return ("not so", ", ".join(lost)) if lost else None
    if name in LOST.values():
        return None
    if name in SAID:
        more = sorted(word for word, times in after.items() if times > before.get(word, 0))
        return ("not so", ", ".join(f"{word} x{after[word]}" for word in more)) if more else None
    if name in SAME:
        return None if before == after or _raised(all_before) else _apart(before, after)
    if name == "gradients":
        lost = sorted(set(before) - set(after))
        return ("a gradient", f"none for {', '.join(lost)}") if lost else None
    if name == "offers":
        return _offers(before, after)
    if name in (HOLDS, "entries held at the end"):
        slack = HELD if name.startswith("tensors") else ENTRIES
        return (str(before), str(after)) if after > before + slack else None
    if isinstance(before, int):
        return _number(name, before, after, all_before, all_after)
    return _ended(name, str(before), str(after), _kind(all_before) == _kind(all_after))


def _raised(facts: dict[str, Any]) -> bool:
    return str(facts.get("ends", "")).startswith(RAISES)


def _kind(facts: dict[str, Any]) -> str:
    return re.sub(r"\[[^]]*\]", "", str(facts.get("ends", "")))


def _number(name: str, before: int, after: int, all_before: Taken, all_after: Taken) -> tuple[str, str] | None:
    match = GROWING.fullmatch(name)
    if not match:
        slack = LEFT if name.startswith("tensors left") else int(name in MEASURED)
        return (str(before), str(after)) if after > before + slack else None
    if match[3]:
        one = f"{match[1]} with {match[3]}"
        small = [facts.get(one) or 0 for facts in (all_before, all_after)]
        if all(small) and before and _power(after, small[1]) > _power(before, small[0]) + GROWTH and after > before:
            return f"{small[0]} to {before} elements", f"{small[1]} to {after} elements"
    if match[1] == "peak":  # what is made at once may hold more than what is made piece by piece; not of another order
        return None
    return (f"{before} elements", f"{after} elements") if after > TIMES * max(before, 64) else None


def _power(large: int, small: int) -> float:
    return math.log(max(large, 1) / small, 4)


def _ended(name: str, before: str, after: str, same_kind: bool) -> tuple[str, str] | None:
    """How a call ended that was made in another way."""
    if name == "with integers doubled":
        return (before, after) if before.startswith(RAISES) and not after.startswith(RAISES) else None
    if name == TWICE:  # what gradients get anew must be right
        wrong = after.startswith(OTHERWISE) or (before == AS and after != AS)
        return (before, after) if wrong and not before.startswith(OTHERWISE) else None
    if before.startswith("finite"):
        return None if after.startswith("finite") else (before, after)
    if before == AS or before.startswith(f"{AS};"):
        wrong = not (after == AS or after.startswith(f"{AS};")) or (same_kind and before != after)
        return (before, after) if wrong else None
    if before.startswith((RAISES, OTHERWISE, "not finite")):
        return None
    if after.startswith(RAISES):
        return before, after
    return (before, after) if same_kind and before != after else None


def _offers(before: dict[str, list[str]], after: dict[str, list[str]]) -> tuple[str, str] | None:
    """Names that are gone, and parameters that another order, kind or default of today's callers meets."""
    imported = before.get(IMPORTED, [])
    owed = {name for name in before if name != IMPORTED and name.split(".")[0] not in imported}
    rows = [f"{name} is gone" for name in owed - after.keys() if name.split(".")[0] not in after.get(IMPORTED, [])]
    for name in owed & after.keys():
        if name == "__all__":
            rows += [f"{one} is gone from __all__" for one in before[name] if one not in after[name]]
        elif not _takes(before[name], after[name]):
            rows.append(f"{name}({', '.join(after[name])})")
    return ("as it was", "; ".join(sorted(rows))) if rows else None


def _takes(before: list[str], after: list[str]) -> bool:
    """Whether all of today's calls are still taken: by order, by name, by the same defaults; docstrings stay."""
    places = [[row for row in rows if row.startswith("positional")] for rows in (before, after)]
    names = [{row for row in rows if not row.startswith("positional")} for rows in (before, after)]
    more = [row for row in (*places[1][len(places[0]) :], *sorted(names[1] - names[0])) if " " in row]
    added = [row for row in more if " = " not in row and not row.startswith(("var_", OPTION))]
    return places[1][: len(places[0])] == places[0] and names[0] <= names[1] and not added


def _apart(before: Any, after: Any) -> tuple[str, str]:
    """What differs of two things; of two mappings the keys that do."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        before, after = ({key: held.get(key, "none") for key in keys} for held in (before, after))
    elif isinstance(before, list) and isinstance(after, list):
        before, after = sorted(set(before) - set(after)), sorted(set(after) - set(before))
    return _short(before), _short(after)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
