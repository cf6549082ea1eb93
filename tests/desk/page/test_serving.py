"""Queries for a version, answered on this machine as api.osv.dev answers them."""

import json
import threading
import urllib.error
import urllib.request

import pytest

from patchlane.base.errors import PatchlaneError
from reproducers.desk.page import serving

RECORD = {"id": "x_patchlane-07", "affected": [{"package": {"name": "toy-up"}, "versions": ["1.0"]}]}


@pytest.fixture
def ask():
    with serving.server([RECORD], 0) as started:
        threading.Thread(target=started.serve_forever, daemon=True).start()

        def post(query, path=serving.PATH):
            address = f"http://127.0.0.1:{started.server_port}{path}"
            with urllib.request.urlopen(
                urllib.request.Request(address, json.dumps(query).encode()), timeout=20
            ) as done:
                return json.loads(done.read())

        post.port = started.server_port
        yield post
        started.shutdown()


def query(name="toy-up", version="1.0", ecosystem="PyPI"):
    return {"package": {"name": name, "ecosystem": ecosystem}, "version": version}


def test_a_version_with_the_bug_gets_its_record_by_any_spelling(ask):
    assert ask(query()) == ask(query("Toy_Up")) == {"vulns": [RECORD]}


@pytest.mark.parametrize("other", [query(version="1.1"), query("other"), query(ecosystem="npm")], ids=str)
def test_everything_else_gets_nothing(ask, other):
    assert ask(other) == {}


@pytest.mark.parametrize(
    "wrong",
    [{}, [], {"package": {"name": "toy-up"}}, {"commit": "a" * 40}, query(version="!!"), query(version=[1])],
    ids=str,
)
def test_a_query_of_something_else_is_refused(ask, wrong):
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(wrong)
    assert refused.value.code == 400


def test_a_port_that_is_taken_is_refused_before_a_record_is_made(ask):
    with pytest.raises(PatchlaneError):
        serving.answer(lambda: pytest.fail("records were made"), ask.port, print)


def test_another_path_is_refused(ask):
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(query(), "/v1/other")
    assert refused.value.code == 400


def test_a_port_that_is_taken_says_what_to_do(ask):
    with pytest.raises(PatchlaneError) as refused:
        serving.server([], ask.port)
    assert refused.value.remedy.startswith("--serve ")
