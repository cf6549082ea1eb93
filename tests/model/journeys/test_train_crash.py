"""Killed at any moment of a save, a run resumes from a whole checkpoint, of which every number is one step's."""

import itertools
import random
import re
import signal
import time

import pytest
from train_kit import checkpoints

pytestmark = pytest.mark.upstream
KILLS = 20


def until(child, word):
    """What the child has said once ``word`` is among it."""
    ends = time.monotonic() + 300
    while word not in child.said():
        assert time.monotonic() < ends, child.said()
        time.sleep(0.002)
    return child.said()


def last(said, word):
    found = re.findall(rf"{word} (\d+)", said)
    return int(found[-1]) if found else None


@pytest.fixture(scope="module")
def killed(stack, text, tmp_path_factory):
    """(what each child found and last said that it saved, partial folders it left), the run's folder."""
    folder = tmp_path_factory.mktemp("killed") / "checkpoints"
    folder.mkdir()
    timed = stack.run("trained:saving", str(folder), str(text), 1)
    assert timed.code == 0, timed.said
    began, found, draw = time.monotonic(), [], random.Random(0)
    for _ in range(KILLS):
        child = stack.start("trained:saving", str(folder), str(text), 1000)
        until(child, "loaded")
        began = time.monotonic()
        until(child, "saved")
        time.sleep(draw.uniform(0, 2 * (time.monotonic() - began)))
        child.kill(signal.SIGKILL)
        ended = child.wait()
        assert ended.code == -signal.SIGKILL, ended.said
        partial = [name for name in checkpoints(folder.parent) if name.startswith(".")]
        found.append((last(ended.said, "loaded"), last(ended.said, "saved"), partial))
    return found, folder


def test_what_was_saved_is_what_is_resumed_from(killed):
    """A save that was named and not yet said may count as well."""
    found, _ = killed
    for (_, saved, _), (loaded, _, _) in itertools.pairwise(found):
        assert loaded in (saved, saved + 1)


def test_the_kills_fell_into_saves(killed):
    found, _ = killed
    assert sum(bool(partial) for *_, partial in found) >= KILLS // 3
    assert max(len(partial) for *_, partial in found) == 1


def test_the_next_save_clears_up(killed, stack, text):
    found, folder = killed
    ended = stack.run("trained:saving", str(folder), str(text), 1)
    assert ended.code == 0, ended.said
    step = found[-1][1]
    assert last(ended.said, "loaded") in (step, step + 1)
    newest = last(ended.said, "saved")
    assert checkpoints(folder.parent) == [f"step_{n:07d}" for n in (newest - 1, newest)]
