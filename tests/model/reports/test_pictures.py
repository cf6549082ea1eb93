"""What hinders a run's pictures at its end hinders no run."""

import sys

import pytest
from recorded import held_out, step

from model.records.metrics import MetricsLog
from model.reports import pictures


@pytest.mark.parametrize("records", [[step(1), step(2)], [held_out(0, 2.0)]])
def test_without_matplotlib_a_line_says_how_to_draw_them(records, tmp_path, monkeypatch, capsys):
    with MetricsLog(tmp_path) as log:
        for record in records:
            log.write(record)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    pictures.at_the_end(tmp_path)
    said = capsys.readouterr()
    assert said.out == ""
    if records[0].kind == "train":
        assert "pip install matplotlib" in said.err and f"python -m model.pictures {tmp_path}" in said.err
    else:
        assert said.err == ""
