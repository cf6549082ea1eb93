"""Dockerfiles: what ``RUN`` installs, by dockerfile-parse and the shell's reader, and what a base image may hold."""

from __future__ import annotations

import io
import json
import re
from typing import NamedTuple

from patchlane.base.optional import load
from patchlane.listed.reading import Reading
from patchlane.listed.scripts import installs
from patchlane.listed.scripts.shell import Command, Variables
from patchlane.listed.scripts.tools import INSTALLING, SETTINGS

INSTRUCTIONS = """
ADD ARG CMD COMMENT COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL MAINTAINER ONBUILD RUN SHELL STOPSIGNAL USER
VOLUME WORKDIR
"""
DOCUMENT = re.compile(r"<<-?\s*([\"']?)(\w+)\1")
FIRST = re.compile(r"\A(?:\s*(?:#[^\n]*)?\n|\s*ARG[ \t][^\n]*\n)*\s*FROM[ \t]+\S", re.IGNORECASE)
FLAG = re.compile(r"\s*--(mount|network|security|device)=\S+")
BARE = re.compile(  # images without packages of the training stack
    r"(docker\.io/)?(library/)?(scratch|python|ubuntu|debian|alpine|rockylinux|almalinux|fedora|centos|amazonlinux"
    r"|nvidia/cuda|nvcr\.io/nvidia/cuda|(ghcr\.io/astral-sh|astral)/uv|continuumio/miniconda3|condaforge/miniforge3"
    r"|mambaorg/micromamba)([:@].*)?"
)


class Instruction(NamedTuple):
    """An instruction, its first line (1-based), its value on one line, its lines, and their here-documents."""

    name: str
    line: int
    value: str
    rows: list[str]
    documents: dict[int, list[str]]


def is_dockerfile(name: str, text: str) -> bool:
    lower = name.lower()
    named = lower.startswith(("dockerfile", "containerfile")) or lower.endswith((".dockerfile", ".containerfile"))
    return named or bool(FIRST.match(text))


def read(text: str, reading: Reading) -> Reading:
    """Read what a Dockerfile installs into ``reading``; its ``ARG`` and ``ENV`` are taken as they stand there."""
    variables, stages = Variables(), set[str]()
    reading.script = reading.moved = True  # its folders are those of the image
    for each in instructions(text):
        said = f"{each.name} {each.value}"
        if each.name not in INSTRUCTIONS.split():
            reading.miss(each.line, said, "no instruction of a Dockerfile")
        elif each.name == "FROM":
            _base(each, variables, stages, reading)
        elif each.name == "RUN":
            _mounted(each, stages, reading)
            _run(each, Variables(dict(variables.values)), reading)
        elif each.name in ("COPY", "ADD", "CMD", "ENTRYPOINT", "HEALTHCHECK"):
            _brought(each, stages, reading)
        elif each.name == "ONBUILD":
            reading.miss(each.line, said, "runs in images that are built on this one")
        else:
            _set(each, variables)
            if each.name == "ENV" and (SETTINGS.search(each.value) or reading.upstream(each.value)):
                reading.miss(each.line, said, "names a file that pip or uv reads besides, or the folder of an upstream")
            else:
                reading.skip(each.line, said, "installs nothing")
    return reading


def instructions(text: str) -> list[Instruction]:
    """The instructions in order. The parser gets no here-document, of which it would make instructions."""
    rows = _continued(text.split("\n"))
    documents = _documents(rows)
    inside = {line for start, body in documents.items() for line in range(start + 1, start + 1 + len(body))}
    plain = "\n".join("#" if number in inside else row for number, row in enumerate(rows))
    parser = load("dockerfile_parse", "dockerfile-parse").DockerfileParser(fileobj=io.BytesIO(plain.encode()))
    found = []
    for each in parser.structure:
        first, last = each["startline"], each["endline"]
        if first not in inside:
            own = {line: body for line, body in documents.items() if first <= line <= last}
            kept = rows[first : last + 1]
            found.append(Instruction(each["instruction"], first + 1, each["value"], kept, own))
    return found


def _continued(rows: list[str]) -> list[str]:
    """Lines as Docker joins them: blanks behind a backslash do not count, nor does an empty line after one."""
    done = list[str]()
    for row in rows:
        row = re.sub(r"\\[ \t]+$", r"\\", row)
        inside = bool(done) and (done[-1].endswith("\\") or (done[-1].lstrip().startswith("#") and _inside(done)))
        done.append("#" if inside and not row.strip() else row)
    return done


def _inside(rows: list[str]) -> bool:
    """Whether the last line that is no comment goes on."""
    last = next((row for row in reversed(rows) if not row.lstrip().startswith("#")), "")
    return last.endswith("\\")


def _brought(each: Instruction, stages: set[str], reading: Reading) -> None:
    """Files that are copied, and what a container runs when it starts."""
    said = f"{each.name} {each.value}"
    image = re.search(r"--from=(\S+)", each.value)
    if image and image[1].lower() not in stages and not image[1].isdigit() and not BARE.fullmatch(image[1]):
        reading.miss(each.line, said, "what it copies from another image is not in this file")
    elif reading.upstream(each.value):
        reading.miss(each.line, said, "names an upstream in a way that is not read")
    elif each.name == "ADD" and re.search(r"git@|\.git\b|://", each.value):
        reading.miss(each.line, said, "what it fetches is not in this file")
    elif (
        each.name not in ("COPY", "ADD")
        and INSTALLING.search(each.value)
        and re.search(r"install|sync|add", each.value)
    ):
        reading.miss(each.line, said, "installs something when a container starts")
    else:
        reading.skip(each.line, said, "copies files or says what is run")


def _mounted(each: Instruction, stages: set[str], reading: Reading) -> None:
    """``RUN --mount=type=bind,from=IMAGE``."""
    for image in re.findall(r"--mount=\S*?\bfrom=([^,\s]+)", each.value):
        if image.lower() not in stages and not BARE.fullmatch(image):
            reading.miss(each.line, f"RUN {each.value}", "what it mounts of another image is not in this file")


def _documents(rows: list[str]) -> dict[int, list[str]]:
    """{line that asks for a here-document: its lines with the one that ends it}, of RUN and COPY."""
    found = dict[int, list[str]]()
    number, running = 0, False
    while number < len(rows):
        word = re.match(r"\s*([A-Za-z]+)\s", rows[number])
        continued = number > 0 and rows[number - 1].rstrip().endswith("\\")
        running = running if continued else bool(word and word[1].upper() in ("RUN", "COPY"))
        asked = [match[2] for match in DOCUMENT.finditer(rows[number])] if running else []
        start = number
        for name in asked:
            end = next((n for n in range(number + 1, len(rows)) if rows[n].strip() == name), None)
            if end is not None:
                found[start] = found.get(start, []) + rows[number + 1 : end + 1]
                number = end
        number += 1
    return found


def _base(each: Instruction, variables: Variables, stages: set[str], reading: Reading) -> None:
    """What a base image has installed is not in this file."""
    words = [word for word in each.value.split() if not word.startswith("--")]
    known = variables.values
    image = re.sub(
        r"\$\{?(\w+)(?::?-([^}]*))?\}?", lambda m: known.get(m[1]) or m[2] or m[0], words[0] if words else ""
    )
    image = image.strip("\"'")
    if BARE.fullmatch(image) or image.lower() in stages:
        reading.skip(each.line, each.value, "an image without packages of the training stack, or a stage of this file")
    else:
        said = f"what the image {image} has installed is not in this file: audit --python inside of it"
        reading.miss(each.line, f"FROM {each.value}", said)
    if len(words) == 3:
        stages.add(words[2].lower())


def _set(each: Instruction, variables: Variables) -> None:
    """``ARG NAME=VALUE``, ``ENV NAME=VALUE ...`` and ``ENV NAME VALUE``."""
    if each.name not in ("ARG", "ENV"):
        return
    pairs = re.findall(r"(\w+)=(\"[^\"]*\"|'[^']*'|\S*)", each.value)
    alone = re.fullmatch(r"(\w+)\s+(\S+)", each.value)
    for name, value in pairs or ([alone.groups()] if alone and each.name == "ENV" else []):
        variables.put(name, value.strip("\"'") if "$" not in value else None)


def _run(each: Instruction, variables: Variables, reading: Reading) -> None:
    """``RUN ["program", ...]``, ``RUN <<EOF`` with a script, or a line for the shell."""
    value = FLAG.sub("", each.value).strip()
    if value.startswith("["):
        try:
            words = [str(word) for word in json.loads(value)]
        except (ValueError, RecursionError):
            return reading.miss(each.line, value, "neither a list of words nor a line for the shell")
        return installs.run(Command(each.line, [*words], value), reading)
    alone = DOCUMENT.match(value)
    rows = list[str]()
    for number, row in enumerate(each.rows):
        document = each.documents.get(each.line - 1 + number, [])
        if alone and document:  # the here-document is the script
            rows += ["", *document[:-1], ""]
        else:
            rows += ["\\" if row.lstrip().startswith("#") else row, *document]
    if not alone:
        rows[0] = re.sub(r"^\s*RUN\s", "", rows[0], flags=re.IGNORECASE)
    text = FLAG.sub("", "\n".join(rows))
    installs.read("\n" * (each.line - 1) + text, reading, variables)
    return None
