"""What a Dockerfile installs; the base image may hold more than the file says."""

from pathlib import Path

import pytest

from patchlane.listed.reading import Reading
from patchlane.listed.scripts import dockerfile

TEXT = """\
# syntax=docker/dockerfile:1
ARG TAG=3.12
FROM python:${TAG} AS base
ARG TOY=1.0
ARG EMPTY=
ENV OTHER=2.0 MORE="3.0"
ENV OLD 4.0
RUN --mount=type=cache,target=/cache \\
    # a comment in between
    pip install toyup==${TOY} \\
      other==$OTHER && \\
    pip install more==$MORE old==$OLD
RUN ["pip", "install", "listed==5"]
RUN <<EOF
pip install inner==6
EOF
RUN python - <<'PY'
import torch
from x import y
PY
FROM base
COPY . .
ONBUILD RUN pip install later==1
"""


def read(text):
    return dockerfile.read(text, Reading(Path("Dockerfile")))


def test_what_it_installs():
    seen = read(TEXT)
    assert [(x.name, x.version, x.line) for x in seen.required] == [
        ("toyup", "1.0", 10),
        ("other", "2.0", 10),
        ("more", "3.0", 12),
        ("old", "4.0", 12),
        ("listed", "5", 13),
        ("inner", "6", 15),
    ]
    assert [x.line for x in seen.unread] == [23]


@pytest.mark.parametrize(
    ("image", "known"),
    [
        ("python:3.12-slim", True),
        ("nvidia/cuda:13.0-devel", True),
        ("scratch", True),
        ("ubuntu@sha256:ab", True),
        ("nvcr.io/nvidia/pytorch:26.06-py3", False),
        ("acme/python:3", False),
        ("$IMAGE", False),
        ("pythons", False),
    ],
)
def test_only_a_bare_image_holds_nothing_more(image, known):
    seen = read(f"FROM {image}\nRUN pip install toyup==1.0\n")
    assert [x.line for x in seen.unread] == ([] if known else [1])


@pytest.mark.parametrize(
    "line",
    [
        "RUN pip install $X",
        "INSTALL toyup",
        "RUN [broken",
        "RUN pip install -r /tmp/gone.txt",
        "RUN pip install .",
        "COPY --from=ghcr.io/x/train:1 /opt/venv /opt/venv",
        "ADD https://example.org/x.git#v1 /opt/x",
        "CMD pip install toyup==1.0",
        "HEALTHCHECK CMD pip install toyup==1.0",
        "ENV PIP_CONSTRAINT=c.txt",
        "RUN --mount=type=bind,from=acme/train,target=/x cp -r /x /y",
    ],
)
def test_what_is_not_understood_is_named(line):
    assert [x.line for x in read(f"FROM python:3\n\n{line}\n").unread] == [3]


@pytest.mark.parametrize(
    ("name", "text", "is_one"),
    [
        ("Dockerfile.x", "", True),
        ("a.dockerfile", "", True),
        ("x", "ARG A=1\n# c\n\nFROM y\n", True),
        ("r.txt", "a==1\n", False),
    ],
)
def test_how_it_is_told(name, text, is_one):
    assert dockerfile.is_dockerfile(name, text) is is_one
