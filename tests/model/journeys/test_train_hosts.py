"""Runs over two hosts: two torchrun agents on one machine, and ranks that are each the first of a host."""

import socket
import subprocess
import sys

import pytest
import torch.distributed as dist
from forked import ENVIRONMENT
from train_kit import checkpoints, good, held_out, measured, options, train

from model.records import history
from reproducers.record.schema import ROOT

pytestmark = pytest.mark.upstream
COMMON = {"steps": 4, "save_every": 2, "evaluate_every": 4, "fp32": True}


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def hosts(stack, given, **changed):
    """A rank on each of two hosts, started with ``given[host]``; ``changed``: {variable: value of each host}."""
    at = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port()}
    places = [at | {"RANK": str(host)} | {name: each[host] for name, each in changed.items()} for host in range(2)]
    children = [stack.start("trained:cli", given[host], environment=places[host]) for host in range(2)]
    return [child.wait() for child in children]


@pytest.mark.long
def test_two_agents_train_and_save_and_one_goes_on(stack, text, tmp_path):
    """The agents meet by c10d's rendezvous; the run goes on on one host with the same rows."""
    out = tmp_path / "run"
    # its server is here: a port that is looked up for an agent may be another process's before the agent has it
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    agent += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{store.port}", "--rdzv-id", "hosts"]
    agent += ["--rdzv-conf", "is_host=false"]
    command = [*agent, "-m", "model.train", *options(out, text, ep=2, accumulate=1, **COMMON)]
    said = [tmp_path / f"agent{number}" for number in range(2)]
    agents = [
        subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=file.open("wb"), stderr=subprocess.STDOUT)
        for file in said
    ]
    try:
        ends = [one.wait(400) for one in agents]
    finally:
        for one in agents:
            one.kill()
    assert ends == [0, 0], "\n".join(file.read_text()[-3000:] for file in said)
    assert checkpoints(out) == ["step_0000002", "step_0000004"]
    assert [path.name for path in out.glob(".shared-*")] == []
    good(train(stack, out, text, accumulate=2, **COMMON | {"steps": 6}))
    assert [event.step for event in history.events(history.read(out), "resumed")] == [4]
    assert [(step, tokens) for step, tokens, *_ in measured(out)] == [(step, step * 128) for step in range(1, 7)]
    assert [step for step, *_ in held_out(out)] == [4, 6]


def test_hosts_that_count_restarts_otherwise_meet(stack, text, tmp_path):
    """torchrun counts on each host only what failed there."""
    given = [options(tmp_path, text, wait_limit=60, **COMMON)] * 2
    good(hosts(stack, given, TORCHELASTIC_RESTART_COUNT=["0", "1"]))


def test_a_run_folder_that_is_not_shared_is_refused(stack, text, tmp_path):
    given = [options(tmp_path / f"host{number}", text, **COMMON) for number in range(2)]
    for ended in hosts(stack, given):
        assert ended.code == 2, ended.said
        assert "error: rank 1 does not see what rank 0 writes to --out" in ended.said
        assert "fix: --out " in ended.said and "Traceback" not in ended.said
    assert not list(tmp_path.glob("*/metrics.jsonl")) and not list(tmp_path.glob("*/.shared-*"))


@pytest.mark.parametrize(
    ("changed", "what"), [({"accumulate": 3}, "recipe"), ({"path": "mamba3=torch"}, "option"), ({"ep": 2}, "recipe")]
)
def test_hosts_started_otherwise_are_refused(changed, what, stack, text, tmp_path):
    given = [options(tmp_path, text, **COMMON), options(tmp_path, text, **COMMON | changed)]
    for ended in hosts(stack, given):
        assert ended.code == 2, ended.said
        assert f"error: rank 1 was started with another {what} than rank 0" in ended.said


def test_hosts_with_other_data_are_refused(stack, text, other_text, tmp_path):
    for ended in hosts(stack, [options(tmp_path, data, **COMMON) for data in (text, other_text)]):
        assert ended.code == 2, ended.said
        assert "error: rank 1 was started with another dataset than rank 0" in ended.said
