"""The Atom feed and the index: what RFC 4287 asks, and the words of the receipts."""

import datetime
import json
import re
from urllib.parse import urlparse
from xml.etree import ElementTree

import pytest
from made import details, entry

from reproducers.base.verdicts import Verdict
from reproducers.desk.page import feeds
from reproducers.desk.page.standings import matrices, told

ATOM = f"{{{feeds.ATOM}}}"


@pytest.fixture
def packs(toy):
    pack, rows = toy.pack(), entry(**{"1.0": Verdict.REPRODUCED, "1.1": Verdict.FIXED_UPSTREAM})
    days = [("2026-11-21T10:00:00Z", "REPRODUCED_AND_FIXED"), ("2026-11-23T10:00:00Z", "REPRODUCED")]
    newer = pack.model_copy(update={"number": 8, "title": "a < b & c"})
    return [
        told(pack, rows, [details(started=day, verdict=word) for day, word in days]),
        told(newer, rows, [details(started="2026-11-24T10:00:00Z", verdict="REPRODUCED_AND_FIXED")]),
        told(pack.model_copy(update={"number": 9}), rows, []),
    ]


def faults(data):
    """What RFC 4287, section 4, finds wrong in a feed."""
    root = ElementTree.fromstring(data)
    wrong = [] if root.tag == f"{ATOM}feed" else ["not a feed"]
    for part in (root, *root.iter(f"{ATOM}entry")):
        for name in ("id", "title", "updated"):
            if [len(e.text or "") > 0 for e in part.findall(f"{ATOM}{name}")] != [True]:
                wrong.append(f"{name} of {part.tag}")
        for name in ("updated", "published"):
            for e in part.findall(f"{ATOM}{name}"):
                if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", e.text or ""):
                    wrong.append(f"{name} {e.text}")
        links = [(e.get("rel"), e.get("href")) for e in part.findall(f"{ATOM}link")]
        wrong += ["link"] * (("alternate" not in dict(links)) or not all(href for _, href in links))
        if not urlparse(part.findtext(f"{ATOM}id") or "").scheme:
            wrong.append("id is no address")
    ids = [e.findtext(f"{ATOM}id") for e in root.iter(f"{ATOM}entry")]
    return (
        wrong
        + ["no author"] * (root.find(f"{ATOM}author/{ATOM}name") is None)
        + ["id twice"] * (len(ids) != len(set(ids)))
    )


def test_the_feed_is_valid_and_tells_the_newest_first(packs):
    data = feeds.feed(packs)
    assert faults(data) == [] and data == feeds.feed(packs)
    newest, older = ElementTree.fromstring(data).findall(f"{ATOM}entry")
    assert newest.findtext(f"{ATOM}title") == "toyup: a < b & c"
    assert [older.findtext(f"{ATOM}{name}")[:10] for name in ("published", "updated")] == ["2026-11-21", "2026-11-23"]
    assert older.find(f"{ATOM}link").get("href") == "packs/07.html"
    assert older.findtext(f"{ATOM}summary") == "Every total lacks its first value. In 1.0."
    assert {e.get("term") for e in older.findall(f"{ATOM}category")} == {"toyup", "wrong numbers", "validated"}


@pytest.mark.parametrize("name", ["id", "updated", "title", "author"])
def test_a_feed_without_what_the_standard_asks_is_found(packs, name):
    root = ElementTree.fromstring(feeds.feed(packs))
    root.remove(root.find(f"{ATOM}{name}"))
    assert faults(ElementTree.tostring(root)) != []


def test_an_entry_keeps_its_id(packs):
    ids = [ElementTree.fromstring(feeds.feed(packs[:n])).find(f"{ATOM}entry/{ATOM}id").text for n in (1, 2)]
    assert ids[0] in feeds.feed(packs).decode() and ids[0] != ids[1]


def test_the_index_has_answers_by_release(packs):
    (matrix,) = matrices(packs[:1], {})
    found = json.loads(feeds.index(matrix))
    assert found["releases"] == {"1.1": {"pack07": "fixed"}, "1.0": {"pack07": "bug"}}
    assert found["packs"]["pack07"]["harm"] == "wrong numbers" and found["distribution"] == "toyup"
    assert datetime.date.fromisoformat(packs[0].changed[:10]) == datetime.date(2026, 11, 23)
