"""Alarms keep their content, and a damaged one is named."""

import math

import pytest

from patchlane.base.errors import PatchlaneError
from reproducers.studies.hunt import corpus

ALARM = corpus.Alarm(
    distribution="toyup",
    release="1.0",
    target="norm",
    symbol="toyup.ops:norm",
    relation="reference",
    what="output 0",
    also={"gradient of x": 0.5},
    error=math.inf,
    limit=1e-6,
    case={"sizes": {"B": 1}},
    seed=3,
)


def test_an_alarm_is_read_as_it_was_kept(tmp_path):
    path = corpus.keep(tmp_path, ALARM)
    assert corpus.keep(tmp_path, ALARM) == path and corpus.kept(tmp_path, "toyup") == [ALARM]
    assert corpus.kept(tmp_path, "other") == []


def test_the_name_is_of_the_case_not_the_release():
    other = ALARM.model_copy(update={"release": "2.0", "seed": 4})
    assert other.key == ALARM.key != ALARM.model_copy(update={"what": "output 1"}).key


def test_a_damaged_one_is_named(tmp_path):
    path = corpus.keep(tmp_path, ALARM)
    path.write_text("{}")
    with pytest.raises(PatchlaneError, match=path.name) as refused:
        corpus.kept(tmp_path, "toyup")
    assert refused.value.remedy == f"rm {path}"
