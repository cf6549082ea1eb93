"""A toy pack to which nothing but a person's approval is wanting, with the tree of its pin in the toy's store."""

import datetime

import yaml
from toy import FIRST, RECORD, REPRODUCER, THREAD, TOTAL, edited, write_tree

from reproducers.desk.gate.checklist import examine
from reproducers.evidence import receipts
from reproducers.record.schema import load_pack

DAY = datetime.date(2026, 11, 24)
NEEDS = '# /// script\n# requires-python = ">=3.11"\n# dependencies = ["toyup==1.0"]\n# ///\n'
HEADER = f"""Subject: total: do not forget the first value
Pack: 07
Origin: written for patchlane
Upstream-Status: Pending (the release that is out has the bug)
Applies-To: toyup 1.0 ({"a" * 40})
Licence: Apache-2.0

"""
MEAN = ("sum(values) / len(values)", "sum(values) / 2")
MUTANT = "Caught-By: mean\nWhy: The mean is of two values.\n\n"
BODY = """{% extends form %}
{% block problem %}The sum of a list is off by {{ measured("cpu", "pristine", "total") }}, because the first value
of the list is never added.{% endblock %}
{% block cause %}The loop starts with the second value of the list.{% endblock %}
{% block evidence %}On a {{ host("cpu") }} the sum is within {{ limit("cpu", "patched", "total") }} of the reference
with the patch.{% endblock %}
{% block expected %}The sum of a list has all of its values.{% endblock %}
{% block fix %}The loop takes every value of the list.{% endblock %}
"""


def record(**changed):
    """The toy's record, looked up on the day, to be filed as a comment; dotted keys are written A__B."""
    values = yaml.safe_load(RECORD)
    values["upstream_state"] = {
        "search": {"found": "threads", "query": "toyup total", "date": DAY},
        "threads": [THREAD | {"looked_up": DAY}],
    }
    values["category"] = "kernel numerics and dimensions"
    values["filing"] = {"decision": "comment", "reason": "the thread reports it", "thread": THREAD["url"]}
    for name, value in changed.items():
        *path, last = name.split("__")
        place = values
        for key in path:
            place = place[key]
        place[last] = value
    return yaml.safe_dump(values)


def write_pack(toy, text=BODY, edits=(TOTAL, FIRST), **changed):
    """The pack's folder and the store's tree; by default all is well."""
    pack = toy.pack(HEADER + toy.patch(edited(*edits)), NEEDS + REPRODUCER, record(**changed))
    fixed = edited(*edits)
    wrong = MUTANT + toy.patch(edited(MEAN, core=fixed["toyup/core.py"]), fixed)
    write_tree(pack.folder, {"body.md.j2": text, "mutants/mean.patch": wrong})
    toy.publish()
    return pack


def receipt(toy, pack, host="bench", day=DAY, hour=9, **request):
    """A receipt of a run on that day; on the pin's own tree unless an ``upstream`` is given."""
    run = toy.run(pack, **request)
    run.started = datetime.datetime(day.year, day.month, day.day, hour, tzinfo=datetime.UTC)
    return receipts.write(run, toy.root / "receipts", host, [], {str(toy.root): "<toy>"})


def report(toy):
    """The pack without a fix, of kind report, to be filed as an issue."""
    pack = write_pack(toy, BODY.partition("{% block fix")[0].replace('"patched"', '"pristine"'))
    pack.patch.unlink()
    filing = {"decision": "issue", "reason": "nobody reports it"}
    write_tree(pack.folder, {"pack.yaml": record(kind="report", filing=filing)})
    return load_pack(pack.folder)


def points(toy, form="comment", day=DAY):
    """{name: point} of the pack's checklist, blockers included."""
    found = examine(load_pack(toy.folder), toy.root / "receipts", toy.root / "store", form, day)
    return {point.name: point for point in (*found.blockers, *found.points)}


def edit(path, old, new):
    """Replace the one ``old`` in a file."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name} holds {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new))
