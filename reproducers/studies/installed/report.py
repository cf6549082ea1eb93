"""An audit as text and as JSON."""

from __future__ import annotations

import json

from reproducers.base.wording import count
from reproducers.studies.installed.environment import Environment
from reproducers.studies.installed.judgement import STATES, Answer, exit_code


def as_json(answers: list[Answer], environment: Environment) -> str:
    content = {
        "schema_version": 1,
        "environment": environment.label,
        "exit_code": int(exit_code(answers)),
        "answers": [answer.model_dump(mode="json", exclude={"measurable"}) for answer in answers],
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def text(answers: list[Answer], environment: Environment) -> str:
    """Bugs first; a line each for what the bug costs, what the answer rests on and what mends or decides it."""
    lines = [environment.label]
    for state in STATES:
        shown = [answer for answer in answers if answer.state == state]
        if state == "absent":
            lines += _absent(shown)
            continue
        for answer in shown:
            what = f"{answer.distribution} {answer.version or ''}".rstrip()
            lines += [f"{state:8} {answer.pack}  {what}: {answer.cost}", f"{'':16} {answer.reason}"]
            lines += [f"{'':16} fix: {answer.remedy}"] if answer.remedy else []
    numbers = [f"{number} {state}" for state in STATES if (number := sum(a.state == state for a in answers))]
    return "\n".join([*lines, f"{count(len(answers), 'pack')}: {', '.join(numbers) or 'none to judge'}"])


def _absent(answers: list[Answer]) -> list[str]:
    """One line a reason."""
    reasons = dict.fromkeys(answer.reason for answer in answers)
    named = {reason: [answer.pack for answer in answers if answer.reason == reason] for reason in reasons}
    return [f"absent   {' '.join(packs)}: {reason}" for reason, packs in named.items()]
