"""Build a need that is published as source only (a torch C++ extension) once on each host, into its store.

The build's key covers everything that it depends on: the sdist's digest, the environment and C sources from
``needs.yaml``, and this host's Python, torch, CUDA and compiler. A build needs a torch with CUDA, the CUDA toolkit and
g++; on a host that lacks one it raises CannotTestHere, which names it. The store keeps the log.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from patchlane.base import clock
from patchlane.base.errors import CannotTestHere
from patchlane.base.files import temporary
from reproducers.record.origin import Origin
from reproducers.record.schema import ROOT, Build
from reproducers.upstream.store import Store, Tree, writable

TIMEOUT_S = 840  # under the store's own lock timeout
ASK = "import json, torch; from reproducers.upstream.built import build_extension as b; print(json.dumps(b.of_torch()))"


def of_torch() -> dict[str, Any]:
    """The facts of Python and of this process's torch that a build depends on."""
    torch = sys.modules["torch"]
    return {
        "python": sysconfig.get_config_var("SOABI"),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "abi": torch._C._GLIBCXX_USE_CXX11_ABI,
    }


def _asked() -> dict[str, Any]:
    """``of_torch``, in a process of its own if this one has not imported torch. The engine never imports it."""
    if "torch" in sys.modules:
        return of_torch()
    done = clock.run(
        [sys.executable, "-c", ASK], clock.STEP_S, "import torch", capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode:
        raise CannotTestHere("torch cannot be imported, and a torch extension has to be built", "make setup")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def host() -> dict[str, Any]:
    """The facts of this host that a build depends on. Raises CannotTestHere naming the first missing tool."""
    facts = _asked()
    if facts["cuda"] is None:
        raise CannotTestHere(
            f"torch {facts['torch']} is built without CUDA, and a CUDA extension has to be built",
            "run it on a GPU host with a CUDA build of torch",
        )
    home = cuda_home()
    compiler = shutil.which("g++")
    if home is None or compiler is None:
        tool = "g++" if compiler is None else "nvcc (the CUDA toolkit)"
        raise CannotTestHere(f"no {tool}, and a CUDA extension has to be built", "install it, or set CUDA_HOME")
    version = clock.run([compiler, "-dumpfullversion"], clock.ANSWER_S, capture_output=True, text=True).stdout
    return facts | {"home": str(home), "g++": version.strip()}


def cuda_home() -> Path | None:
    """The CUDA toolkit's folder: CUDA_HOME, the usual place, or the folder of the nvcc on the path."""
    nvcc = shutil.which("nvcc")
    places = [Path(p) for p in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if p]
    places += [Path(nvcc).resolve().parent.parent] if nvcc else []
    return next((p for p in places if (p / "bin" / "nvcc").is_file()), None)


def ensure(store: Store, name: str, build: Build, source: Tree, sha256: str) -> Tree:
    """The tree with the output of setup.py of ``source`` and the shims, built here if the store does not have it."""
    facts = host()
    shims = [Path(__file__).with_name(shim) for shim in build.shims]
    depends = {**facts, "source": sha256, "environment": build.environment, "shims": [s.read_text() for s in shims]}
    key = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()
    log = store.root / "built" / f"{key}.log"

    def fill(target: Path) -> None:
        log.unlink(missing_ok=True)
        with temporary() as scratch:
            work = Path(scratch) / "source"
            shutil.copytree(source.path, work, copy_function=writable)
            command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(target)]
            _run([*command, "--build-temp", f"{scratch}/objects"], work, _environment(build, facts), name, log)
            if not list(target.rglob("*.so")):
                raise CannotTestHere(f"{name}: setup.py built nothing", f"read {log}")
            for shim in shims:
                library = target / f"lib{shim.stem}.so"
                _run(
                    ["g++", "-x", "c", "-O2", "-shared", "-fPIC", "-o", str(library), str(shim)], work, None, name, log
                )

    return store.tree("built", key, Origin(kind="made", name=f"{name} built for torch {facts['torch']}"), fill)


def _environment(build: Build, facts: dict[str, Any]) -> dict[str, str]:
    """The caller's environment with the interpreter's tools, and the toolkit's headers behind those of setup.py."""
    headers = [f"{facts['home']}/include", f"{facts['home']}/include/cccl", os.environ.get("CPLUS_INCLUDE_PATH", "")]
    own = {"CUDA_HOME": facts["home"], "CPLUS_INCLUDE_PATH": ":".join(h for h in headers if h)}
    own["PATH"] = f"{os.environ.get('PATH', '')}:{Path(sys.executable).parent}"  # with ninja, which saves minutes
    return {**os.environ, "MAX_JOBS": str(os.cpu_count() or 1), **own, **build.environment}


def _run(command: list[str], folder: Path, environment: dict[str, str] | None, name: str, log: Path) -> None:
    """Run a build step and append its output to the log. Raises CannotTestHere with the compiler's first complaint."""
    with log.open("ab") as sink:
        try:
            done = clock.run(command, TIMEOUT_S, cwd=folder, env=environment, stdout=sink, stderr=sink)
        except CannotTestHere as error:
            raise CannotTestHere(f"{name} was not built in {TIMEOUT_S} s", f"read {log}, and run again") from error
    if done.returncode:
        lines = log.read_text(errors="replace").splitlines()
        complaint = next((line for line in lines if "error:" in line.lower()), lines[-1] if lines else "no output")
        raise CannotTestHere(f"{name} cannot be built here: {complaint.strip()[:200]}", f"read {log}")
