# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.11", "triton==3.6.0", "numpy<2.4", "einops", "packaging"]
# ///
"""Mamba-2 and Mamba-3, which need no compiled extension, cannot be imported without Mamba-1's, nor without
transformers.

``mamba_ssm/__init__.py`` imports all that the package exports, and runs before any of its modules: the module of
Mamba-1, which imports ``selective_scan_cuda``, and the language model, which imports transformers. Mamba-2 and Mamba-3
are made of Triton and TileLang kernels. Modules that this test puts in the place of others stand in for what is
installed beside mamba-ssm, never for a part of it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import random
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from reproducers import probe


def minimal() -> None:
    """Import Mamba-3 where there is no compiled extension, as after ``MAMBA_SKIP_CUDA_BUILD=TRUE pip install``."""
    import sys

    sys.modules.setdefault("selective_scan_cuda", None)
    from mamba_ssm.modules.mamba3 import Mamba3

    print("imported", Mamba3.__name__, "and transformers" if "transformers" in sys.modules else "alone")


EXTENSION = "selective_scan_cuda"
EXPORTED = {
    "Mamba": "mamba_ssm.modules.mamba_simple",
    "Mamba2": "mamba_ssm.modules.mamba2",
    "Mamba3": "mamba_ssm.modules.mamba3",
    "MambaLMHeadModel": "mamba_ssm.models.mixer_seq_simple",
    "mamba_inner_fn": "mamba_ssm.ops.selective_scan_interface",
    "selective_scan_fn": "mamba_ssm.ops.selective_scan_interface",
}
BESIDE = {  # what is imported from distributions beside mamba-ssm, by module
    "transformers": (),
    "transformers.generation": ("GenerateDecoderOnlyOutput", "TextStreamer"),
    "transformers.utils": ("WEIGHTS_NAME", "CONFIG_NAME"),
    "transformers.utils.hub": ("cached_file",),
    "huggingface_hub": ("PyTorchModelHubMixin",),
}
ATTRIBUTES = ("ops.selective_scan_interface", "modules.mamba2", "models.mixer_seq_simple", "utils.generation")
NO_EXTENSION = probe.Signature("ModuleNotFoundError", EXTENSION, "mamba_ssm/ops/selective_scan_interface.py")


class Beside(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules beside mamba-ssm that hold nothing but names, made when they are imported; ``seen``: which were."""

    def __init__(self, names: dict[str, tuple[str, ...]]) -> None:
        self.names, self.seen = names, list[str]()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        return importlib.util.spec_from_loader(name, self, is_package=True) if name in self.names else None

    def exec_module(self, module: ModuleType) -> None:
        self.seen.append(module.__name__)
        vars(module).update({name: type(name, (), {}) for name in self.names[module.__name__]})


class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An extension that was built for another torch."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name == EXTENSION else None

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError("selective_scan_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi")


def beside(extension: bool) -> Beside:
    """Stand-ins for what is beside the package; with the compiled extension, or as if there were none."""
    found = Beside(BESIDE | ({EXTENSION: ()} if extension else {}))
    sys.meta_path.insert(0, found)
    if not extension:
        sys.modules[EXTENSION] = None  # type: ignore[assignment]
    return found


def without(p: probe.Probe, name: str) -> None:
    """A module that needs no extension, where there is none."""
    beside(extension=False)
    module = p.attempt(f"{name} without the extension", lambda: importlib.import_module(EXPORTED[name]), NO_EXTENSION)
    if module is not None:
        p.upstream(EXPORTED[name])
        package = importlib.import_module("mamba_ssm")
        p.guard(
            f"{name} is the package's", getattr(package, name) is not getattr(module, name), 0, reference="the same"
        )


def alone(p: probe.Probe) -> None:
    """What Mamba-3 brings, where all is installed."""
    found = beside(extension=True)
    p.upstream(EXPORTED["Mamba3"])
    p.error(
        "modules of transformers that come with Mamba-3",
        sum(name.startswith("transformers") for name in found.seen),
        0,
        reference="it reads none",
        bug_above=1,
    )
    p.error("extensions that come with Mamba-3", found.seen.count(EXTENSION), 0, reference="it calls none", bug_above=1)


def by_itself(p: probe.Probe) -> None:
    """The package by itself, where there is no extension."""
    beside(extension=False)
    package = p.attempt("the package without the extension", lambda: importlib.import_module("mamba_ssm"), NO_EXTENSION)
    if package is not None:
        p.guard("the version is a text", not isinstance(package.__version__, str), 0, reference="a text")
        p.guard(
            "Mamba-1 without the extension is told", not refused(lambda: package.Mamba), 0, reference="an ImportError"
        )


def refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except ImportError:
        return True
    return False


def names(p: probe.Probe) -> None:
    """All that the package exports, where all is installed, in the order of a user's asking."""
    beside(extension=True)
    package: Any = importlib.import_module("mamba_ssm")
    drawn = random.Random(p.seed).sample(sorted(EXPORTED), len(EXPORTED))
    wrong = sum(getattr(package, name) is not getattr(p.upstream(EXPORTED[name]), name) for name in drawn)
    p.guard("exported names that are not their modules'", wrong, 0, reference="the same objects")
    wrong = sum(getattr(package, name) is not getattr(package, name) for name in drawn)
    p.guard("exported names that are made anew", wrong, 0, reference="the same objects")
    for absent in ("Mamba4", "nothing", "__wrapped__"):
        p.guard(f"{absent} is there", hasattr(package, absent), 0, reference="it is not")


def star(p: probe.Probe) -> None:
    """All names at once, before any was asked for by itself."""
    beside(extension=True)
    scope: dict[str, Any] = {}
    exec("from mamba_ssm import *", scope)
    p.guard("exported names that * does not bring", len(EXPORTED.keys() - scope.keys()), 0, reference="all")


def listed(p: probe.Probe) -> None:
    """The names, before any was asked for."""
    beside(extension=True)
    lacking = EXPORTED.keys() - set(dir(importlib.import_module("mamba_ssm")))
    p.guard("exported names that dir() lacks", len(lacking), 0, reference="all")


def attributes(first: str, p: probe.Probe) -> None:
    """Modules that a user reads from the package after ``import mamba_ssm`` alone, ``first`` before the others."""
    beside(extension=True)
    package: Any = importlib.import_module("mamba_ssm")
    p.guard_attempt(
        f"{first} and other submodules as attributes", lambda: [walk(package, at) for at in (first, *ATTRIBUTES)]
    )


def walk(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name)
    return value


def broken(p: probe.Probe) -> None:
    """A build for another torch is told where Mamba-1 is asked for, not when it is called."""
    beside(extension=False)
    del sys.modules[EXTENSION]
    sys.meta_path.insert(0, Broken())

    def ask() -> Any:
        from mamba_ssm import Mamba

        return Mamba

    p.guard("an extension that cannot be loaded is told", not refused(ask), 0, reference="an ImportError")


def threads(p: probe.Probe) -> None:
    """Two threads that ask at once, where all is installed."""
    beside(extension=True)
    package, found, ready = importlib.import_module("mamba_ssm"), list[Any](), threading.Barrier(2)

    def ask() -> None:
        ready.wait()
        found.append(package.Mamba2)

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    p.guard("two threads are given one class", len(found) != 2 or found[0] is not found[1], 0, reference="the same")


CASES: tuple[Callable[[probe.Probe], None], ...] = (
    lambda p: without(p, "Mamba3"),
    lambda p: without(p, "Mamba2"),
    alone,
    by_itself,
    names,
    star,
    listed,
    *(partial(attributes, first) for first in (*ATTRIBUTES, "distributed", "utils", "models")),
    broken,
    threads,
)


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cpu":
        p.triton_interpreter()
    p.ranks(len(CASES), lambda rank: CASES[rank](p))  # each in an interpreter that has imported nothing of the package


if __name__ == "__main__":
    probe.main(reproduce, pack=42, package="mamba_ssm", minimal=minimal)
