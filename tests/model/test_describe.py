"""``python -m model.describe``: all figures of each size, without importing torch."""

import subprocess
import sys
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from model import describe as verb
from model.definition import parameters
from model.families.sizes import SIZES
from patchlane.base.errors import PatchlaneError
from reproducers.record.schema import ROOT

# Runs a module as ``python -m`` does and says, last, which heavy packages came with it.
TRACED = """
import runpy, sys
sys.argv = ["describe", *sys.argv[1:]]
try:
    runpy.run_module("model.describe", run_name="__main__")
finally:
    print("heavy:", sorted({"torch", "megatron", "triton", "numpy"} & set(sys.modules)))
"""


def started(*args):
    """In a process of its own."""
    return subprocess.run([sys.executable, "-c", TRACED, *args], cwd=ROOT, capture_output=True, text=True)


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def describe(*args):
    """In this process, a refusal as ``cli.guarded`` ends with it."""
    done = CliRunner().invoke(verb.app, args)
    refusal = done.exception
    if isinstance(refusal, PatchlaneError):
        return Done(int(refusal.exit_code), done.stdout, f"error: {refusal}")
    assert refusal is None or isinstance(refusal, SystemExit), refusal
    return Done(done.exit_code, done.stdout, done.stderr)


@pytest.mark.parametrize("name", ["nam56r", "v4_flash"])
def test_prints_a_size_of_each_family_without_torch(name):
    done = started(name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"


@pytest.mark.parametrize("name", SIZES)
def test_prints_each_size(name):
    done = describe(name)
    assert done.returncode == 0, done.stderr
    for figure in (f"{parameters.total(SIZES[name]):,}", "hybrid_flops", "activations"):
        assert figure in done.stdout


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        (
            "v4_flash",
            (
                "284,332,240,471",
                "6,610,048,891",
                "13,799,632,471",
                "13,270,101,591",
                "Megatron dev's pattern |  |  | WEWECEHE",
            ),
        ),
        ("v4_pro", ("1,572,997,201,763", "25,840,145,979", "49,779,081,059", "48,852,402,019", "HEHECEHE")),
    ],
)
def test_figures_of_deepseek_v4_with_and_without_mtp_and_embedding(name, figures):
    done = describe(name, "--dp", "8", "--ep", "8", "--pp", "2", "--markdown")
    assert done.returncode == 0, done.stderr
    assert [figure for figure in figures if figure not in done.stdout] == []


def test_a_layout_has_a_row_for_each_stage():
    done = describe("nam56r", "--dp", "8", "--ep", "4", "--pp", "4")
    assert done.returncode == 0, done.stderr
    for layers in ("1–13", "14–29", "30–36", "37–52"):
        assert layers in done.stdout


def test_memory_and_a_checkpoint_are_of_the_optimizer():
    found = [describe("nam56r_quarter", *given).stdout for given in ((), ("--optimizer", "muon"))]
    assert ["a checkpoint has 21.9" in one for one in found] == [True, False]
    assert ["Muon; a checkpoint has 17.9" in one for one in found] == [False, True]
    page = describe("nam56r_quarter", "--optimizer", "muon", "--markdown").stdout
    assert "--optimizer muon --markdown`" in page or "--markdown --optimizer muon`" in page


def test_the_largest_layout_is_proposed_and_described():
    done = describe("nam56r_wide", "--gpus", "2", "--markdown")
    assert done.returncode == 0, done.stderr
    proposed = done.stdout.index("| 2 | 1 | 1 | 3 | ")
    assert proposed < done.stdout.index("data 2, expert 1, pipeline 1, micro-batch 3 x 4096")
    assert "--gpus 2 --gib 139 --markdown`" in done.stdout


@pytest.mark.parametrize(
    "args",
    [
        ("nam57",),
        ("nam56r", "--gpus", "1", "--gib", "78"),
        ("nam56r", "--gpus", "2", "--dp", "2"),
        ("nam56r", "--dp", "8", "--ep", "3"),
        ("nam56r_tiny", "--dp", "3", "--ep", "3"),
        ("nam56r", "--pp", "40"),
    ],
)
def test_bad_input_is_told_how_to_mend(args):
    done = describe(*args)
    assert done.returncode not in (0, 1) and "fix:" in done.stderr


def test_a_process_ends_with_what_it_says_and_no_traceback():
    args = ("nam56r", "--pp", "40")
    done, told = started(*args), describe(*args)
    assert done.returncode == told.returncode and done.stderr.strip() == told.stderr.strip()


@pytest.mark.parametrize(
    "args",
    [
        ("nam56r", "--gpus", "1", "--gib", "10"),
        ("nam56r_wide", "--gpus", "2", "--gib", "40", "--sequence", "8192"),
        ("nam56r_quarter", "--gpus", "3", "--gib", "12", "--optimizer", "muon"),
    ],
    ids=" ".join,
)
def test_a_layout_that_does_not_fit_names_a_command_that_does(args):
    refused = describe(*args)
    assert refused.returncode == 2
    command = refused.stderr.partition("fix: ")[2].strip().partition(",")[0].split()
    assert command[:3] == ["python", "-m", "model.describe"] and {*args[5:]} <= {*command}
    assert describe(*command[3:]).returncode == 0


@pytest.mark.parametrize("option", ["--dp", "--ep", "--pp", "--micro-batch"])
@pytest.mark.parametrize("value", ["0", "-3"])
def test_less_than_one_is_refused(option, value):
    done = describe("nam56r_tiny", option, value)
    assert done.returncode == 2 and option in done.stderr


def test_memory_grows_with_the_rows_length():
    """Activations alone, by as much as the row."""
    found = {}
    for sequence in ("4096", "16384"):
        done = describe("nam56r_wide", "--dp", "8", "--micro-batch", "4", "--sequence", sequence)
        assert done.returncode == 0, done.stderr
        (row,) = [line.split("│") for line in done.stdout.splitlines() if "1–52" in line and line.count("│") == 8]
        found[sequence] = [float(cell) for cell in row[3:7]]
    assert found["4096"][:3] == found["16384"][:3]
    assert found["16384"][3] == pytest.approx(4 * found["4096"][3], abs=0.3)


PROFILED = "2xh200_wide_host_ep1_nowait_profile_20261122"


def test_a_plan_is_predicted_from_a_kept_run_without_torch():
    done = started("nam56r_wide", "--dp", "64", "--micro-batch", "3", "--overlap-grads", "--plan", PROFILED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"
    for words in ("Plan, a prediction and no measurement", "tokens/s/GPU", "never measured", PROFILED):
        assert words in done.stdout


def test_the_rate_between_hosts_is_an_input():
    speeds = []
    for rate in ("50", "1"):
        done = describe("nam56r_wide", "--dp", "64", "--plan", PROFILED, "--link-between-hosts", rate)
        (row,) = [line.split("│") for line in done.stdout.splitlines() if "tokens/s/GPU" in line]
        speeds.append(float(row[2].replace(",", "")))
    assert speeds[0] > speeds[1] > 0


def test_a_page_with_a_plan_names_its_command():
    args = ("nam56r_wide", "--dp", "16", "--plan", PROFILED, "--accumulate", "2", "--gpus-per-host", "4")
    printed = describe(*args, "--markdown").stdout
    (command,) = [line.split("`")[1] for line in printed.splitlines() if line.startswith("Generated by")]
    again = describe(*command.split()[3:])
    assert again.returncode == 0 and again.stdout == printed and "## Plan, a prediction" in printed


@pytest.mark.parametrize(
    "args",
    [
        ("--plan", "2xh200_wide_ep1_20261122"),  # kept without a profile
        ("--plan", "no_such_run"),
        ("--plan", PROFILED, "--dp", "2", "--ep", "2"),  # no all-to-all in it
        ("--plan", PROFILED, "--sequence", "8192"),
        ("--plan", PROFILED, "--overlap-weights"),
        ("--plan", PROFILED, "--dp", "12"),  # one host and a half
    ],
)
def test_a_plan_that_cannot_be_made_is_told_how_to_mend(args):
    done = describe("nam56r_wide", *args)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 2 and "fix:" in done.stderr
