"""What the engine starts as an arm: upstream's pytest on one file, beside one tree.

The tests are copied into the arm's scratch folder, without the packages of the tree under test, so that code under test
can come from that tree only. The environment is that of one rank under torchrun.
"""

import argparse
import importlib.machinery
import json
import os
import shutil
import socket
import sys
from pathlib import Path

from reproducers.probe.lanes import transformer_engine

HERE = Path(__file__).parent


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _stand_in(name: str, path: list[str], folder: Path) -> bool:
    """Write an empty module of that name into ``folder`` where none is on ``path`` or installed; whether it did."""
    if importlib.machinery.PathFinder.find_spec(name, [*path, *sys.path]):
        return False
    (folder / f"{name}.py").write_text(f'"""Stands in for {name}, which this host lacks: it has nothing."""\n')
    return True


def main() -> None:
    """Lay out the scratch folder and become pytest; ``--label`` is the task as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tree", required=True)
    parser.add_argument("--needs", action="append", default=[])
    parser.add_argument("--lane", required=True)
    parser.add_argument("--label", required=True)
    given, _ = parser.parse_known_args()
    task, scratch = json.loads(given.label), Path.cwd()
    copy, beside, home = scratch / "suite", scratch / "beside", scratch / "home"
    left_out = {str(Path(task["tests"], name)) for name in task["leave_out"]}
    shutil.copytree(
        task["tests"],
        copy,
        symlinks=True,
        ignore=lambda folder, names: [name for name in names if os.path.join(folder, name) in left_out],  # noqa: PTH118
    )
    for folder in (beside, home):
        folder.mkdir()
    shutil.copyfile(HERE / "outcomes.py", beside / "patchlane_outcomes.py")
    shutil.copyfile(HERE / "offline.py", beside / "sitecustomize.py")
    stood_in = [name for name in task["stand_ins"] if _stand_in(name, [given.tree, *given.needs, str(copy)], beside)]
    with Path(task["rows"]).open("a", encoding="utf-8") as rows:
        rows.write(json.dumps({"stood_in": stood_in}) + "\n")
    settings = beside / "pytest.ini"  # upstream's own has options of its CI: reports, a stop at the first failure
    settings.write_text("[pytest]\n")
    shims = [str(shim) for need in given.needs if (shim := transformer_engine.preloaded(Path(need)))]
    environment = {
        **transformer_engine.cuda_headers(),
        **os.environ,
        **({"LD_PRELOAD": os.pathsep.join(shims)} if shims else {}),
        **task["environment"],
        "PYTHONPATH": os.pathsep.join([given.tree, *given.needs, str(copy), str(beside)]),
        "UPSTREAM_TESTS_TASK": json.dumps({**task, "tree": given.tree, "copy": str(copy)}),
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())},
        **({"CUDA_VISIBLE_DEVICES": ""} if given.lane == "cpu" else {}),
    }
    os.chdir(copy)
    options = ["-c", str(settings), "--rootdir", str(copy), "-p", "no:cacheprovider", "-p", "patchlane_outcomes"]
    command = [sys.executable, "-s", "-P", "-m", "pytest", *options, "-q", "--tb=short", *task["ask"]]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    main()
