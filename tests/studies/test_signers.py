"""Who signed a receipt: a trusted key, another one, nobody; and signatures that do not hold."""

import shutil
import subprocess

import pytest
from typer.testing import CliRunner

import reproducers.receipts as verb
from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.desk.page.views import pack_views
from reproducers.evidence import heads, shelf, table
from reproducers.evidence.manifest import build, import_receipts
from reproducers.evidence.receipts import write
from reproducers.evidence.saving import places
from reproducers.record.entry import Manifest
from reproducers.studies import signers

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")


@pytest.fixture
def receipts(toy):
    """The two receipts of one pack."""
    run, root = toy.run(toy.pack()), toy.root / "receipts"
    return [write(run, root, "toy-host", ["pack07"], places(toy.store)) for _ in range(2)]


@pytest.fixture
def keys(tmp_path):
    """{name: private key}, and the file in which only Ana's is allowed."""
    made = {}
    for name in ("ana", "ben"):
        made[name] = tmp_path / name
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", made[name]], check=True)
    allowed = tmp_path / "allowed"
    allowed.write_text(f"ana@example.org {made['ana'].with_suffix('.pub').read_text()}")
    return made, allowed


def verified(root, allowed):
    return CliRunner().invoke(verb.app, ["verify", str(root), "--signers", str(allowed)])


def test_a_trusted_signer_is_named_and_the_rest_is_counted(receipts, keys):
    made, allowed = keys
    done = CliRunner().invoke(verb.app, ["sign", str(receipts[0]), "--key", str(made["ana"])])
    assert done.exit_code == 0 and shelf.signature(receipts[0]).is_file(), done.output
    assert signers.signed(receipts[0], allowed) == ("ana@example.org", "")
    assert signers.signed(receipts[1], allowed) == (None, "")
    done = verified(receipts[0].parent.parent, allowed)
    assert done.exit_code == 0
    assert "ana@example.org: 1 receipt\n" in done.output and f"{allowed}: 1 receipt\n" in done.output


def test_a_signature_of_somebody_else_names_nobody(receipts, keys):
    made, allowed = keys
    signers.sign(receipts[0], made["ben"])
    assert signers.signed(receipts[0], allowed) == (None, "")


@pytest.mark.parametrize("name", ["ana", "ben"])
def test_a_signature_of_another_receipt_is_a_fault(receipts, keys, name):
    made, allowed = keys
    shutil.copy(signers.sign(receipts[0], made[name]), shelf.signature(receipts[1]))
    signer, fault = signers.signed(receipts[1], allowed)
    assert signer is None and fault
    done = verified(receipts[0].parent.parent, allowed)
    assert done.exit_code == 1 and receipts[1].name in done.output


def test_what_does_not_verify_is_not_signed(receipts, keys):
    receipts[1].with_suffix(".log").write_text("another")
    with pytest.raises(PatchlaneError):
        signers.sign(receipts[1], keys[0]["ana"])
    assert not shelf.signature(receipts[1]).exists()


def test_a_key_that_cannot_sign_is_refused(receipts, tmp_path):
    (tmp_path / "text").write_text("no key\n")
    for key in (tmp_path / "text", tmp_path / "none"):
        with pytest.raises(PatchlaneError, match="--key"):
            signers.sign(receipts[0], key)


def test_without_ssh_keygen_nothing_is_said(receipts, keys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CannotTestHere):
        signers.sign(receipts[0], keys[0]["ana"])


def test_a_signature_is_imported_with_its_receipt(receipts, keys, tmp_path):
    signers.sign(receipts[0], keys[0]["ana"])
    import_receipts(receipts, tmp_path / "taken")
    names = {path.name for path in (tmp_path / "taken" / "07").iterdir()}
    assert names == {path.name for path in receipts[0].parent.iterdir()}


def test_the_table_and_the_site_say_whether_a_receipt_is_signed(toy, receipts, keys, monkeypatch):
    pack, root = toy.pack(), receipts[0].parent.parent
    monkeypatch.setattr(shelf, "COMMITTED", root)

    def told() -> tuple[list[str], bool]:
        (view,) = pack_views([pack], root)
        cell = table.row(pack, build([pack], root)[pack.id], {}).rstrip(" |\n").rpartition(", ")[2]
        return [receipt.signed for receipt in view.history], cell == "signed"

    assert told() == (["unsigned", "unsigned"], False)
    newest = build([pack], root)[pack.id].lanes["cpu"].receipt
    signers.sign(root / newest, keys[0]["ana"])
    words, signed = told()
    assert signed
    assert sorted(words) == ["signed", "unsigned"]


def test_a_lost_record_of_mutants_or_tests_is_named_by_the_manifest(receipts, tmp_path):
    root = receipts[0].parent.parent
    record = receipts[0].with_name("mutation_20261123T000000Z_toy-host_0123456789ab.json")
    record.write_text("{}")
    (tmp_path / "manifest.yaml").write_text(Manifest(packs={}, receipts=heads.heads(root)).text)
    assert not heads.lost(tmp_path / "manifest.yaml", root)
    record.write_text("{ }")
    assert "differ" in heads.lost(tmp_path / "manifest.yaml", root)[0]
    record.unlink()
    assert record.stem in heads.lost(tmp_path / "manifest.yaml", root)[0]
