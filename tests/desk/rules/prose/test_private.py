"""What is private is found however it is written."""

import pytest

from reproducers.desk.rules.prose import private
from reproducers.desk.rules.prose.private import EMAIL, HOST, PARTS, PATHS

SAMPLES = {
    PATHS: ["in /home/a", "/scratch/x.py", "file:///tmp/a", "/data/b", "on C:\\Users"],
    EMAIL: ["a@b.org", "first.last+x@mail.company.io"],
    HOST: [
        *("git.company.internal", "x.intranet", "a.b.corp", "nas.lan", "gpu07.cluster.local", "https://wiki/packs"),
        *("http://box:8080", "10.20.30.40", "192.168.0.1", "172.16.0.1", "172.31.255.1", "172.20.1.2", "ssh://8.8.8.8"),
    ],
}


@pytest.mark.parametrize(("pattern", "text"), [(p, text) for p, texts in SAMPLES.items() for text in texts])
def test_a_text_with_a_match_is_searched(pattern, text):
    text = f"one\n{text}\ntwo"
    found = [match.span() for match in pattern.finditer(text)]
    assert found and [match.span() for match in private._matches(pattern, text)] == found


def test_each_pattern_that_is_passed_over_has_samples():
    assert set(SAMPLES) == set(PARTS)
