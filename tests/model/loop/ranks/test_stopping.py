"""What a stop leaves for scripts, and the script of docs/multi-node.md that looks for it."""

import json
import os
import signal
import subprocess
import time

import pytest

from model.loop.ranks import stopping
from reproducers.record.schema import ROOT

# a run that ends at once, or one that waits for its stop and is saved with steps left
SRUN = {
    "finished": "#!/bin/bash\nexit 0\n",
    "failed": "#!/bin/bash\nexit 2\n",
    "stopped": """#!/bin/bash
echo "$@" > srun
touch running
until [ -e stop ]; do sleep 0.02; done
touch stopped.json
""",
}


def script(run):
    """The page's Slurm script, for the folder ``run``."""
    block = (ROOT / "docs/multi-node.md").read_text().partition("## Slurm\n")[2].partition("\n\n")[0]
    lines = [line.removeprefix("    ") for line in block.splitlines()]
    assert lines[0] == "#!/bin/bash"
    return "\n".join(lines).replace("out=/shared/run1", f"out={run}") + "\n"


@pytest.mark.parametrize("how", SRUN)
def test_the_slurm_script_queues_its_job_again_while_steps_are_left_and_only_then(how, tmp_path):
    for name, text in {"srun": SRUN[how], "scontrol": '#!/bin/bash\necho "$@" >> scontrol.said\n'}.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "stopped.json").touch()  # of the job before
    (tmp_path / "job").write_text(script(tmp_path))
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, "SLURM_JOB_ID": "77", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    job = subprocess.Popen(["bash", "job"], cwd=tmp_path, env=given)
    if how == "stopped":
        ends = time.monotonic() + 60
        while not (tmp_path / "running").exists():
            assert time.monotonic() < ends and job.poll() is None
            time.sleep(0.02)
        assert "-m model.train nam56r_wide" in (tmp_path / "srun").read_text()
        job.send_signal(signal.SIGUSR1)
    job.wait(60)
    said = (tmp_path / "scontrol.said").read_text().splitlines()
    assert [line for line in said if line.startswith("requeue")] == (["requeue 77"] if how == "stopped" else [])


def test_what_a_stop_leaves_goes_at_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    first, other = stopping.Stop(tmp_path, True), stopping.Stop(tmp_path, False)
    other.leave(7, 9, "step_0000007")
    assert [*tmp_path.iterdir()] == []
    first.leave(7, 9, "step_0000007")
    left = tmp_path / stopping.LEFT
    assert json.loads(left.read_text()) == {"step": 7, "steps": 9, "checkpoint": "step_0000007"}
    first.forget()
    assert not left.exists()


def test_the_first_lines_tell_the_last_checkpoint_or_the_size_of_the_next(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    alone = stopping.cost((95.4, 61.7), 62.0)
    assert "95.4 s" in alone and "61.7 GiB" in alone and "torchrun" not in alone
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert "62 GiB" in stopping.cost(None, 62.0) and "torchrun" in stopping.cost(None, 62.0)
