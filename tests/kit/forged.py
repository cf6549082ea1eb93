"""Receipts changed as a forger would: statement, log and digests together."""

import hashlib
import json
import re


def seal(path, body, log):
    """Write a statement and its log in place of ``path``'s, with digests and name made anew."""
    body["predicate"]["patchlane"]["log_sha256"] = hashlib.sha256(log.encode()).hexdigest()
    path.with_suffix(".log").write_text(log)
    when = re.sub("[-:]", "", body["predicate"]["patchlane"]["started"])
    return named(path, (json.dumps(body, indent=1, sort_keys=True) + "\n").encode(), when)


def named(path, data, when=""):
    """Write other bytes in place of a statement, under the name that their digest and time demand, log included."""
    before, host, _ = path.name.split("_")
    log = path.with_suffix(".log").rename(path.with_name("moving"))
    path.unlink()
    path = path.with_name(f"{when or before}_{host}_{hashlib.sha256(data).hexdigest()[:12]}.json")
    path.write_bytes(data)
    log.rename(path.with_suffix(".log"))
    return path


def both(path):
    return json.loads(path.read_text()), path.with_suffix(".log").read_text()


def everywhere(path, **fields):
    """Change fields in the statement and in the log's first entry alike."""
    body, log = both(path)
    first, rest = log.split("\n", 1)
    head = json.loads(first.removeprefix("[run] "))
    body["predicate"]["patchlane"].update(fields)
    head.update(fields)
    return seal(path, body, f"[run] {json.dumps(head, sort_keys=True)}\n{rest}")


def checks(path, change, arm="patched"):
    """Change the checks of an arm's only repeat in the statement and in the arm's record in the log alike."""
    body, log = both(path)
    (stated,) = body["predicate"]["patchlane"][arm]
    rows = log.split("\n")
    at = next(i for i, row in enumerate(rows) if row.startswith(f'[{arm}] {{"') and '"patchlane": "record"' in row)
    record = json.loads(rows[at].removeprefix(f"[{arm}] "))
    for each in (stated, record):
        change(each["checks"])
    rows[at] = f"[{arm}] {json.dumps(record, sort_keys=True)}"
    return seal(path, body, "\n".join(rows))
