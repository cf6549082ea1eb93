"""The progress line."""

import io
import math

import pytest
from recorded import held_out, step
from rich.console import Console

from model.loop.progress import ProgressLine, line


def shown(records, total, every=10, terminal=False):
    console = Console(file=io.StringIO(), width=200, force_terminal=terminal)
    with ProgressLine(total, every, console) as progress:
        for record in records:
            progress.update(record) if record.kind == "train" else progress.valid(record)
    return console.file.getvalue()


def test_the_line_says_everything():
    record = step(3, gpu="NVIDIA H200", mfu=0.244, peak_gib=77.25, tokens_per_s_per_gpu=12_345.6)
    assert line(record, 1200, 3723) == (
        "step 3/1,200  loss 3.3333  grad 1  lr 1.00e-04  12,346 tok/s/GPU  0.2 TFLOP/s (0.1 built)  MFU 24.4%  77.2 GiB"
        "  ETA 1:02:03"
    )


def test_a_cpu_has_no_mfu_and_no_memory():
    said = line(step(3), 10, None)
    assert "MFU" not in said and "GiB" not in said and "CPU rank" in said and said.endswith("ETA –")


def test_plain_lines_every_so_many_steps():
    said = shown([step(n) for n in range(1, 26)], total=25).splitlines()
    assert [text.split()[1] for text in said] == ["10/25", "20/25", "25/25"]
    assert [text.split("ETA ")[1] for text in said] == ["0:00:08", "0:00:02", "0:00:00"]


def test_the_compiling_first_step_does_not_spoil_the_eta():
    slow = step(1).seconds.model_copy(update={"forward_backward": 900.0})
    said = shown([step(1, seconds=slow), step(2)], total=102, every=1).splitlines()
    assert said[0].endswith("ETA –") and said[1].endswith("ETA 0:00:50")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_bad_step_and_the_held_out_loss_are_always_printed(terminal):
    said = shown([step(7, loss=math.nan, skipped=True), held_out(7, 2.125)], total=25, terminal=terminal)
    assert "NOT FINITE, skipped" in said and "held-out loss 2.1250" in said


def test_a_refused_step_is_not_said_to_be_without_numbers():
    said = shown([step(7, skipped=True)], total=25)
    assert said.split()[-1] == "skipped" and "NOT FINITE" not in said


def test_a_held_out_set_is_named():
    assert shown([held_out(7, 2.125, "code")], total=25).split("held-out ")[1].startswith("loss of code 2.1250")


def test_a_terminal_gets_one_live_line():
    said = shown([step(n) for n in range(1, 26)], total=25, terminal=True)
    assert "step 25/25" in said and "\x1b[" in said
