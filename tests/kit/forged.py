"""Receipts changed as a forger would: statement, log and digests together."""

import hashlib
import json
import re


def seal(path, body, log):
    """Write a statement and its log in place of ``path``'s, with digests and name made anew."""
    body["predicate"]["patchlane"]["log_sha256"] = hashlib.sha256(log.encode()).hexdigest()
    data = (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()
    path.unlink()
    path.with_suffix(".log").unlink()
    when = re.sub("[-:]", "", body["predicate"]["patchlane"]["started"])
    path = path.with_name(f"{when}_{path.name.split('_')[1]}_{hashlib.sha256(data).hexdigest()[:12]}.json")
    path.write_bytes(data)
    path.with_suffix(".log").write_text(log)
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
