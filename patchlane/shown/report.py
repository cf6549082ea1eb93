"""An audit as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from patchlane.base.exits import Exit
from patchlane.base.wording import count
from patchlane.judged.answers import STATES, Advice, Answer
from patchlane.present.environment import Environment

NOT_SHOWN = {"measurable", "patch", "root", "label"}


def as_json(answers: list[Answer], advice: list[Advice], environment: Environment, code: Exit) -> str:
    skipped = environment.reading.skipped if environment.reading else []
    content = {
        "schema_version": 2,
        "environment": environment.label,
        "exit_code": int(code),
        "answers": [_shown(answer) for answer in answers],
        "advice": [asdict(each) for each in advice],
        "not_understood": [asdict(line) for line in environment.unread],
        "skipped": [asdict(line) for line in skipped],
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def _shown(answer: Answer) -> dict[str, Any]:
    return {name: value for name, value in asdict(answer).items() if name not in NOT_SHOWN}


def text(answers: list[Answer], advice: list[Advice], environment: Environment) -> str:
    """Bugs first; a line each for what the bug costs, what the answer rests on and what mends or decides it."""
    lines = [environment.label]
    for state in STATES:
        shown = [answer for answer in answers if answer.state == state]
        lines += _grouped(shown) if state in ("unknown", "absent") else _one_by_one(shown)
    for each in advice:
        lines += _advised(each, answers)
    lines += [f"{'not read':8} {line.place}: {line.text}: {line.why}" for line in environment.unread]
    return "\n".join([*lines, _summary(answers, environment)])


def _one_by_one(answers: list[Answer]) -> list[str]:
    lines = []
    for answer in answers:
        what = f"{answer.distribution} {answer.version or ''}".rstrip()
        lines += [f"{answer.state:8} {answer.pack}  {what}: {answer.cost}", f"{'':16} {answer.reason}"]
        lines += (
            [f"{'':16} {answer.harm}: {answer.effect}"]
            if answer.state == "buggy" and answer.harm and answer.effect
            else []
        )
        lines += [f"{'':16} fix: {answer.remedy}"] if answer.remedy else []
    return lines


def _grouped(answers: list[Answer]) -> list[str]:
    """Two lines a reason and remedy, which may name the pack itself."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for answer in answers:
        what = f"{answer.distribution} {answer.version}: " if answer.version else ""
        key = (answer.state, what + answer.reason, answer.remedy.replace(answer.pack, "{}"))
        groups.setdefault(key, []).append(answer.pack)
    lines = []
    for (state, reason, remedy), packs in groups.items():
        lines += [f"{state:8} {' '.join(packs)}: {reason}"]
        lines += [f"{'':16} fix: {remedy.replace('{}', ' '.join(packs))}"] if remedy else []
    return lines


def _advised(advice: Advice, answers: list[Answer]) -> list[str]:
    """One line a distribution: the release with the fewest known bugs, and what stays."""
    now = sum(a.state == "buggy" for a in answers if a.distribution == advice.distribution)
    stays = f"{count(len(advice.stays), 'known bug')} of {now} stay: {' '.join(advice.stays)}"
    parts = [stays if advice.stays else "no known bug stays"]
    parts += [f"not measured there: {' '.join(advice.unknown)}"] if advice.unknown else []
    parts += [advice.reason] if advice.reason else []
    return [f"{'fix':8} {advice.command}", f"{'':16} {'; '.join(parts)}"]


def _summary(answers: list[Answer], environment: Environment) -> str:
    numbers = [f"{number} {state}" for state in STATES if (number := sum(a.state == state for a in answers))]
    said = f"{count(len(answers), 'pack')}: {', '.join(numbers) or 'none to judge'}"
    reading, unread = environment.reading, len(environment.unread)
    if reading:
        asked = count(len(reading.required), "requirement")
        said += f"; {asked} read, {count(len(reading.skipped), 'line')} skipped, {unread} not understood"
    elif unread:
        said += f"; {count(unread, 'line')} not understood"
    return said
