"""Packs side by side: each on its own GPU, and a receipt as soon as a pack ends."""

import threading
import xml.etree.ElementTree as ElementTree

import pytest
from toy import SOURCE, body, write_tree

from reproducers.evidence import saving
from reproducers.host import facts
from reproducers.record.schema import Lane
from reproducers.trial import arms, screen, session
from reproducers.trial.experiment import Request, Run


@pytest.fixture
def packs(toy):
    """Four packs with a cuda lane; the third uses two GPUs."""
    pack = toy.pack()
    lanes = [Lane(gpus=1), Lane(gpus=1), Lane(gpus=1, up_to_gpus=2), Lane(gpus=1)]
    return [pack.model_copy(update={"number": 7 + n, "lanes": {"cuda": lane}}) for n, lane in enumerate(lanes)]


def ran(monkeypatch, packs, visible, workers, together=1, lane="cuda"):
    """[(pack number, GPU)] in the order in which they began, and the numbers in the order of the results."""
    begun, barrier = [], threading.Barrier(together)

    def execute(pack, request, store, say):
        begun.append((pack.number, request.gpu))
        if pack.number in (7, 8):
            barrier.wait(60)
        return Run(pack, request)

    monkeypatch.setattr(session, "execute", execute)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    runs = session.run_packs(packs, Request(lane=lane), workers, screen.console(True))
    return begun, [run.pack.number for run in runs]


def test_two_packs_at_a_time_have_a_gpu_each(packs, monkeypatch):
    begun, order = ran(monkeypatch, packs, "2,5", workers=2, together=2)
    assert begun[0] == (9, None)  # it uses both GPUs, before the others
    assert {gpu for number, gpu in begun if number in (7, 8)} == {"2", "5"}
    assert dict(begun)[10] in ("2", "5") and order == [7, 8, 9, 10]


@pytest.mark.parametrize(("visible", "gpu"), [("3", "3"), ("", None)])
def test_more_packs_than_gpus_share(packs, monkeypatch, visible, gpu):
    begun, _ = ran(monkeypatch, packs, visible, workers=2, together=2)
    assert sorted(begun) == [(number, gpu) for number in (7, 8, 9, 10)]


@pytest.mark.parametrize(("workers", "lane"), [(1, "cuda"), (2, "cpu")])
def test_no_gpu_is_picked_without_need(packs, monkeypatch, workers, lane):
    begun, order = ran(monkeypatch, packs, "0,1", workers, lane=lane)
    assert sorted(begun) == [(number, None) for number in order] == [(n, None) for n in (7, 8, 9, 10)]


def test_gpus_are_numbered_where_nobody_names_them(monkeypatch):
    monkeypatch.setattr(facts, "gpus", lambda: [{}, {}])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert facts.visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-3f2,GPU-9a1")
    assert facts.visible_gpus() == ["GPU-3f2", "GPU-9a1"]


def test_an_arm_sees_its_gpu_only(toy, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    spec = arms.ArmSpec(toy.root, toy.root, [], "cuda", 0, "toy", {}, 1, 1, toy.root / "cache", gpu="1")
    assert arms._environment(spec, toy.root)["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_receipt_is_there_before_the_next_pack_runs(toy, monkeypatch):
    """So an interrupted batch keeps the receipts of finished packs."""
    write_tree(toy.upstream, SOURCE)
    pack, written = toy.pack(), []
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    toy.publish()
    execute = session.execute

    def counted(*args):
        written.append(len(list(toy.root.glob("out/07/*.json"))))
        return execute(*args)

    monkeypatch.setattr(session, "execute", counted)
    recorder = saving.Recorder(toy.root / "out", "toy", [])
    session.run_packs([pack, pack], Request(arm="pristine"), 1, screen.console(True), ended=recorder.write)
    assert written == [0, 1] and recorder.tell(screen.console(True))


def test_a_junit_file_holds_whatever_an_arm_says(toy, tmp_path):
    """XML has no control characters, no halves of characters and not U+FFFE."""
    evil = "\x00\x1b[2J\ud800\ufffe\u202e]]><x>"
    run = toy.run(toy.pack(reproducer=body(f"p.upstream('toyup')\nraise RuntimeError({evil!r})")))
    run.ruling = run.ruling._replace(reason=evil)
    session.write_junit([run], tmp_path / "j.xml")
    said = "".join(node.get("message") for node in ElementTree.parse(tmp_path / "j.xml").iter("failure"))
    assert "␛[2J" in said and "]]><x>" in said and "\u202e" not in said
