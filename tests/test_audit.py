"""The audit verb on real releases of liger-kernel, and how it ends."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from toy import FIRST, SOURCE, TOTAL, diff, edited, write_tree
from toy_environment import installed, known_of

from patchlane.known.index import load, path_in
from reproducers.carried import changed, entry, importing
from reproducers.carried.meeting.trees import Tree
from reproducers.carried.patches import mails
from reproducers.record.schema import ROOT, load_named
from reproducers.upstream import patching
from reproducers.upstream.store import Store

STRANGE = edited(("values[1:]:", "values[2:]:"))


def audit(*args, root=ROOT, **environment):
    """(exit code, stdout, stderr) of the verb."""
    command = [sys.executable, "-m", "reproducers.audit", *map(str, args)]
    variables = {**os.environ, "PYTHONPATH": str(root), **environment}
    done = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def release(label):
    """The store's tree of a wheel, which is what pip unpacks into site-packages."""
    for note in (Store(offline=True).root / "trees").glob("*.json"):
        if json.loads(note.read_text()).get("label") == label:
            return note.with_suffix("")
    pytest.skip(f"{label} is not in the store")


@pytest.fixture
def patched(tmp_path):
    """liger-kernel 0.7.0 as installed, with the pack's patch."""
    folder = shutil.copytree(release("liger-kernel 0.7.0"), tmp_path / "site")
    (pack,) = load_named(["pack09"])
    patching.apply(folder, pack.patch, patching.strip_for(folder, pack.upstream.source_root))
    return folder


@pytest.mark.upstream
def test_three_states_of_liger_kernel_have_three_answers(patched):
    said = {}
    for name, folder in (("0.7.0", release("liger-kernel 0.7.0")), ("mended", patched)):
        code, out, _ = audit("pack09", "--python", folder, "--json")
        (answer,) = json.loads(out)["answers"]
        said[name] = (code, answer["pack"], answer["version"], answer["state"], answer["by"])
    code, out, _ = audit("pack09", "--python", release("liger-kernel 0.8.2"), "--json")
    (answer,) = json.loads(out)["answers"]
    said["0.8.2"] = (code, answer["pack"], answer["version"], answer["state"], answer["by"])
    assert said == {
        "0.7.0": (1, "pack09", "0.7.0", "buggy", "code"),
        "mended": (0, "pack09", "0.7.0", "patched", "code"),
        "0.8.2": (0, "pack09", "0.8.2", "fixed", "code"),
    }


@pytest.mark.upstream
def test_a_release_is_fixed_by_its_receipt_or_by_a_run(tmp_path):
    """0.8.5 has other code than 0.8.2: without a receipt of it only a run knows."""
    pytest.importorskip("torch")
    folder = release("liger-kernel 0.8.5")
    measured = {tree.name for tree in load(path_in()).packs["pack09"].trees}
    code, out, _ = audit("pack09", "--python", folder, "--json")
    assert (code, json.loads(out)["answers"][0]["state"]) == ((0, "fixed") if "0.8.5" in measured else (77, "unknown"))
    code, out, err = audit("pack09", "--python", folder, "--run", "--json")
    assert (code, json.loads(out)["answers"][0]["state"]) == (0, "fixed"), err


@pytest.mark.upstream
def test_the_printed_patch_command_mends(tmp_path):
    folder = shutil.copytree(release("liger-kernel 0.7.0"), tmp_path / "a folder")
    code, out, _ = audit("pack09", "--python", folder)
    command = out[out.index("patch -F0") :].splitlines()[0]
    assert code == 1 and subprocess.run(command, shell=True, capture_output=True).returncode == 0
    code, out, _ = audit("pack09", "--python", folder)
    assert code == 0 and "1 patched" in out


@pytest.fixture
def project(toy):
    """A copy of the engine whose only pack is the toy's, with fingerprints of the toy."""
    pack = toy.pack()
    root = toy.repository(pack)
    (root / "packs" / "fingerprints.json").write_text(known_of(pack).index.text)
    return root


def test_requirements_and_their_exit_codes(project, tmp_path):
    for line, code, word in (
        ("toyup==1.0", 1, "buggy"),
        ("toyup==2.0", 0, "fixed"),
        ("toyup", 77, "unknown"),
        ("toyup==2.0\n???", 77, "fixed"),
    ):
        (tmp_path / "r.txt").write_text(line)
        ended, out, _ = audit("--requirements", tmp_path / "r.txt", root=project)
        assert ended == code and out.splitlines()[1].split()[:2] in ([word, "pack07"], [word, "pack07:"]), out


def test_sarif_json_and_ignore(project, tmp_path):
    site = installed(tmp_path / "site")
    ended, out, _ = audit("--python", site, "--json", "--sarif", tmp_path / "x.sarif", root=project)
    answers = json.loads(out)
    assert (ended, answers["exit_code"], answers["answers"][0]["state"]) == (1, 1, "buggy")
    (result,) = json.loads((tmp_path / "x.sarif").read_text())["runs"][0]["results"]
    assert result["ruleId"] == "pack07"
    ended, out, _ = audit("--python", site, "--ignore", "pack07", root=project)
    assert ended == 77 and "none to judge" in out


def test_unknown_code_is_measured_when_asked(project, tmp_path):
    site = installed(tmp_path / "site", STRANGE)
    ended, out, _ = audit("--python", site, root=project)
    assert ended == 77 and f"audit pack07 --python {site} --run" in out
    ended, out, _ = audit("pack07", "--run", "--python", site, root=project, PATCHLANE_STORE=str(tmp_path / "store"))
    assert ended == 77 and "INCONCLUSIVE on the installed code" in out  # a guard fails too
    assert "1 unknown" in out


def test_write_says_only_what_receipts_say(project, tmp_path):
    path = project / "packs" / "fingerprints.json"
    ended, _, _ = audit("--write", root=project, PATCHLANE_STORE=str(tmp_path / "store"))
    assert ended == 0 and json.loads(path.read_text())["packs"] == {}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["pack99"], "no pack 'pack99'"),
        (["--ignore", "x"], "no pack 'x'"),
        (["pack09", "pack04"], "pack04: the index has no"),
        (["--run"], "--run: no pack named"),
        (["--python", "absent"], "--python absent"),
        (["--python", "/bin/true"], "--python /bin/true"),
        (["--requirements", "absent.txt"], "absent.txt"),
        (["--requirements", "README.md", "--python", "."], "--requirements"),
        (["pack09", "--sarif", "README.md/x"], "README.md"),
    ],
)
def test_bad_input_exits_2_with_its_remedy(args, said):
    ended, _, err = audit(*args)
    assert ended == 2 and said in err and "fix:" in err


def test_no_file_of_the_environment_is_imported_and_none_written(project, tmp_path):
    site = installed(tmp_path / "site", {"toyup/__init__.py": "raise SystemExit(9)", "toyup/core.py": "x = 1"})
    before = sorted(site.rglob("*"))
    ended, out, _ = audit("--python", site, root=project)
    assert ended == 77 and "1 unknown" in out and sorted(site.rglob("*")) == before


def test_a_missing_file_of_fingerprints(project):
    (project / "packs" / "fingerprints.json").unlink()
    ended, _, err = audit(root=project)
    assert ended == 2 and "git checkout" in err


def test_patches_of_a_carried_queue_are_counted(tmp_path):
    """Beside the packs' answers and without changing them: of two patches the first is in."""
    first = edited(TOTAL)
    write_tree(tmp_path, {"1.patch": diff(tmp_path, SOURCE, first), "2.patch": diff(tmp_path, SOURCE, edited(FIRST))})
    given = importing.subject("toy/toyup", "1.0", None, None, None)
    patches = mails.files([tmp_path / "1.patch", tmp_path / "2.patch"])
    taken, _ = importing.entries(patches, given, "theirs", None, False)
    content = {name: text.encode() for name, text in SOURCE.items()}
    changed.note(entry.write(tmp_path, "q", taken), Tree("1.0", content, frozenset(content)))
    site = write_tree(tmp_path / "site", first)
    code, out, _ = audit("--python", site, "--theirs", tmp_path / "q")
    assert (code, out) == (
        audit("--python", site)[0],
        f"{audit('--python', site)[1]}{out[out.index('patched: theirs') :]}",
    )
    assert out.splitlines()[-2:] == ["patched: theirs 1 of 2, q", "  not patched 02_2"]
    told, err = audit("--python", site, "--theirs", tmp_path / "q", "--json")[1:]
    assert json.loads(told) and "theirs 1 of 2" in err
