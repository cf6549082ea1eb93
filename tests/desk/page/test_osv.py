"""OSV records: as the format asks, and no more than receipts say."""

import io
import json
import zipfile

import pytest
from made import details, entry
from osv_format import OsvRecord
from pydantic import ValidationError
from toy import THREAD

from patchlane.base.files import file_sha256
from reproducers.base.verdicts import Verdict
from reproducers.desk.page import osv
from reproducers.desk.page.standings import told
from reproducers.record.schema import Release, Thread

BUG, FINE, OTHER = Verdict.REPRODUCED_AND_FIXED, Verdict.FIXED_UPSTREAM, Verdict.DIFFERENT_FAILURE
RELEASES = {"toyup": {"1.1": Release(sha="1" * 40, artifacts={"x.whl": "a" * 64})}}


def record(toy, releases=RELEASES, threads=(), site="", **tried):
    pack = toy.pack()
    state = pack.upstream_state.model_copy(update={"threads": [Thread.model_validate(THREAD | t) for t in threads]})
    pack = pack.model_copy(update={"upstream_state": state})
    names = {name.strip("_").replace("_", "."): word for name, word in tried.items()}
    (found,) = osv.records([told(pack, entry(**names), [details()])], releases, site)
    OsvRecord.model_validate_json(json.dumps(found))
    return found


def ranges(found, kind):
    return [row["events"] for row in found["affected"][0]["ranges"] if row["type"] == kind]


def test_versions_are_measured_and_a_range_ends_at_a_measured_release(toy):
    found = record(toy, _1_0=OTHER, _1_1=BUG, _1_2=BUG, _1_3=FINE, _1_4=OTHER, _1_5=BUG)
    assert found["affected"][0]["versions"] == ["1.1", "1.2", "1.5"]
    assert ranges(found, "ECOSYSTEM") == [[{"introduced": "1.1"}, {"fixed": "1.3"}]]
    assert found["database_specific"]["measured"]["1.4"] == "unknown"


def test_commits_are_those_of_releases_threads_and_receipts(toy):
    buggy, fine, brought = "b" * 40, "f" * 40, "c" * 40
    assert ranges(record(toy, _1_1=BUG), "GIT") == [[{"introduced": "1" * 40}, {"last_affected": "1" * 40}]]
    threads = [{"relation": "introduced it", "note": f"{brought} brought it"}]
    found = record(toy, threads=threads, **{"1_1": BUG, buggy: BUG, fine: FINE})
    assert ranges(found, "GIT") == [[{"introduced": brought}, {"fixed": fine}]]
    assert ranges(record(toy, {}, _1_1=BUG), "GIT") == []


def test_references_name_threads_patches_and_receipts(toy):
    pull = {"url": "https://github.com/toy/toyup/pull/4", "relation": "fixes it", "state": "merged"}
    threads = [{"relation": "reports it"}, pull, pull | {"state": "open", "url": pull["url"] + "5"}]
    kinds = [(row["type"], row["url"]) for row in record(toy, threads=threads, _1_1=BUG)["references"]]
    assert [kind for kind, _ in kinds] == ["PACKAGE", "REPORT", "FIX", "FIX", "EVIDENCE"]
    assert kinds[3][1].startswith("ni:///sha-256;") and kinds[3][1].endswith("?file=packs/07/pack07-fix.patch")
    at = [row["url"] for row in record(toy, site="https://a.org/x/", _1_1=BUG)["references"]]
    assert at[1:] == ["https://a.org/x/packs/07/pack07-fix.patch", "https://a.org/x/receipts/07/x.json"]
    assert file_sha256(toy.pack().patch) not in kinds[3][1], "RFC 6920 has the digest in base64"


def test_a_pack_without_a_bug_or_a_receipt_has_no_record(toy):
    pack = toy.pack()
    assert osv.records([told(pack, entry(), [])], {}) == []
    assert osv.records([told(pack.model_copy(update={"kind": "refactor"}), entry(), [details()])], {}) == []


def test_there_is_no_severity_and_harm_stands_beside_it(toy):
    found = record(toy, _1_1=BUG)
    assert "severity" not in found
    assert {"harm", "effect", "kind", "lanes"} <= set(found["database_specific"])
    assert (found["database_specific"]["harm"], found["id"]) == ("wrong numbers", "x_patchlane-07")


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "PATCHLANE-07"},
        {"modified": "2026-11-21"},
        {"severity": []},
        {"references": [{"type": "PATCH", "url": "https://a.org"}]},
        {"references": [{"type": "FIX", "url": "a.org"}]},
        {
            "affected": [
                {"package": {"ecosystem": "pypi", "name": "x", "purl": "pkg:pypi/x"}, "versions": [], "ranges": []}
            ]
        },
    ],
    ids=str,
)
def test_a_record_that_the_format_refuses_is_refused_here(toy, wrong):
    with pytest.raises(ValidationError):
        OsvRecord.model_validate_json(json.dumps(record(toy, _1_1=BUG) | wrong))


def test_the_archive_has_all_records_and_the_same_bytes_each_time(toy):
    found = [record(toy, _1_1=BUG)]
    files = osv.files(found)
    assert files == osv.files(found)
    assert sorted(files) == ["osv-scalibr/PyPI/all.zip", "osv-scanner/PyPI/all.zip", "x_patchlane-07.json"]
    with zipfile.ZipFile(io.BytesIO(files["osv-scanner/PyPI/all.zip"])) as archive:
        assert [json.loads(archive.read(name)) for name in archive.namelist()] == found
