"""The manifest as a record: the committed file is read and written back byte for byte; a damaged one is named."""

import made
import pytest

from patchlane.base.errors import PatchlaneError
from reproducers.record import entry
from reproducers.record.entry import Chain, Manifest
from reproducers.record.schema import ROOT


def test_the_committed_manifest_is_written_as_it_was_read():
    path = ROOT / "manifest.yaml"
    assert entry.read(path).text == path.read_text()


def test_what_a_host_does_not_say_is_left_out(tmp_path):
    chains = {"07": Chain(sha256="0" * 64, names=["x"])}
    whole = Manifest(packs={"pack07": made.entry(**{"1.0": "REPRODUCED"})}, receipts=chains)
    (tmp_path / "manifest.yaml").write_text(whole.text)
    assert entry.read(tmp_path / "manifest.yaml") == whole
    assert "platform" not in whole.text and "2026-11-21" in whole.text
    assert entry.read_chains(tmp_path / "manifest.yaml") == chains


@pytest.mark.parametrize("text", ["", "[]\n", "packs: 1\n", "packs: {}\nreceipts: {}\nmood: good\n", "<<<<<<< ours\n"])
def test_a_damaged_manifest_is_named(tmp_path, text):
    (tmp_path / "manifest.yaml").write_text(text)
    with pytest.raises(PatchlaneError, match=r"manifest\.yaml"):
        entry.read(tmp_path / "manifest.yaml")


@pytest.mark.parametrize(
    "text", ["", "[]\n", "receipts: 1\n", "packs: {}\n", "receipts: {'07': {}}\n", "<<<<<<< ours\n"]
)
def test_damaged_chains_are_named(tmp_path, text):
    (tmp_path / "manifest.yaml").write_text(text)
    with pytest.raises(PatchlaneError, match=r"manifest\.yaml"):
        entry.read_chains(tmp_path / "manifest.yaml")


def test_the_chains_are_read_whatever_else_is_damaged(tmp_path):
    (tmp_path / "manifest.yaml").write_text(f"packs: 1\nreceipts:\n  '07': {{sha256: {'a' * 64}, names: [x]}}\n")
    assert entry.read_chains(tmp_path / "manifest.yaml") == {"07": Chain(sha256="a" * 64, names=["x"])}
