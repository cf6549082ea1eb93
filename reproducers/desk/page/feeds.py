"""Packs for programs: an Atom feed (RFC 4287), and an index by release of each upstream."""

from __future__ import annotations

import json
import uuid
from xml.etree import ElementTree

from reproducers.desk.page.standings import Matrix, Told

FEED = "feed.xml"
ATOM = "http://www.w3.org/2005/Atom"
NAMES = uuid.UUID("9d1f2a3e-6a0b-5d7c-8f4e-2b6c1d0e9a57")  # of entries: a pack's id stays when the page moves


def feed(packs: list[Told]) -> bytes:
    """The feed, the pack that changed last first: when its bug was first shown, and when it last changed.

    An entry changes with each receipt. Addresses are relative to the feed's own.
    """
    ElementTree.register_namespace("", ATOM)
    told = sorted((one for one in packs if one.changed), key=lambda one: (one.changed, one.pack.number), reverse=True)
    root = ElementTree.Element(f"{{{ATOM}}}feed")
    _text(root, "id", _urn("feed"))
    _text(root, "title", "patchlane: bugs of the LLM training stack")
    _text(root, "updated", told[0].changed)
    _text(ElementTree.SubElement(root, f"{{{ATOM}}}author"), "name", "patchlane")
    _link(root, "self", FEED)
    _link(root, "alternate", "index.html")
    for one in told:
        root.append(_entry(one))
    ElementTree.indent(root)
    made: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return made + b"\n"


def _entry(told: Told) -> ElementTree.Element:
    pack, entry = told.pack, ElementTree.Element(f"{{{ATOM}}}entry")
    _text(entry, "id", _urn(pack.id))
    _text(entry, "title", f"{pack.upstream.distribution}: {pack.title}")
    _text(entry, "updated", told.changed)
    if told.shown:
        _text(entry, "published", told.shown)
    _link(entry, "alternate", f"packs/{pack.number:02d}.html")
    for term in filter(None, (pack.upstream.distribution, pack.harm, told.entry.state.split("(")[0])):
        ElementTree.SubElement(entry, f"{{{ATOM}}}category", term=term)
    buggy = [release for release, word in told.answers.items() if word == "bug"]
    parts = [pack.effect or pack.claim, f"In {', '.join(buggy)}." if buggy else ""]
    _text(entry, "summary", " ".join(part.rstrip(".") + "." for part in parts if part))
    return entry


def _urn(name: str) -> str:
    return uuid.uuid5(NAMES, name).urn


def _text(parent: ElementTree.Element, name: str, text: str) -> None:
    ElementTree.SubElement(parent, f"{{{ATOM}}}{name}").text = text


def _link(parent: ElementTree.Element, rel: str, href: str) -> None:
    ElementTree.SubElement(parent, f"{{{ATOM}}}link", rel=rel, href=href)


def index(matrix: Matrix) -> bytes:
    """One upstream's releases as JSON: {release: {pack: answer}}, without what nobody measured, and its packs."""
    content = {
        "schema_version": 1,
        "distribution": matrix.distribution,
        "packs": {
            one.pack.id: {
                "title": one.pack.title,
                "kind": one.pack.kind,
                "harm": one.pack.harm,
                "effect": one.pack.effect,
                "state": one.entry.state,
                "page": f"packs/{one.pack.number:02d}.html",
                "commits": one.commits,
            }
            for one in matrix.packs
        },
        "releases": {
            release: {one.pack.id: one.answers[release] for one in matrix.packs if release in one.answers}
            for release in matrix.releases
        },
    }
    return (json.dumps(content, indent=1) + "\n").encode()
