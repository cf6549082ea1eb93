# /// script
# requires-python = ">=3.9"
# dependencies = ["liger-kernel==0.7.0", "torch>=2.8", "triton==3.6.0"]
# ///
"""Importing any of Liger's operators imports peft where it is installed, and with it transformers and accelerate.

``liger_kernel/utils.py`` imports peft to learn whether it is there. Every operator imports that file for the kind of
the device; only the patches of Hugging Face models ask for peft. A module with nothing in it stands in for peft, so
that what is counted does not depend on what is installed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from reproducers import probe


def minimal() -> None:
    """Import an operator beside an empty module named peft; the real one brings transformers and accelerate along."""
    import sys
    import tempfile
    from pathlib import Path

    sys.path.insert(0, tempfile.mkdtemp())
    Path(sys.path[0], "peft.py").touch()
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    print(LigerRMSNormFunction.__name__, "brought peft:", "peft" in sys.modules)
    assert "peft" not in sys.modules


UTILS = "liger_kernel.utils"
OPERATORS = ("liger_kernel.ops", "liger_kernel.ops.rms_norm", "liger_kernel.transformers.rms_norm")


class Peft(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """peft, of which nothing is asked but to be imported; ``fails``: with this. ``seen``: how often it was."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.fails, self.seen = fails, 0
        self.within: Callable[[], Any] = int  # called while it is being imported

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name == "peft" else None

    def exec_module(self, module: ModuleType) -> None:
        self.seen += 1
        self.within()
        if self.fails:
            raise self.fails


def beside(peft: Peft | None) -> None:
    """With this peft, or as if there were none."""
    sys.modules.pop("peft", None)
    if peft is None:
        sys.modules["peft"] = None  # type: ignore[assignment]
    else:
        sys.meta_path.insert(0, peft)


def imported(name: str, p: probe.Probe) -> None:
    """What an operator brings, and what the functions that operators call bring."""
    peft = Peft()
    beside(peft)
    p.upstream(name)
    p.error(f"imports of peft with {name}", peft.seen, 0, reference="it is not called", bug_above=1)
    utils = p.upstream(UTILS)
    p.guard(
        f"{name}: the kind of the device is no text", not isinstance(utils.infer_device(), str), 0, reference="a text"
    )
    p.guard(f"{name}: there is an NPU", bool(utils.is_npu_available()), 0, reference="there is none")
    p.error(f"imports of peft after {name} was used", peft.seen, 0, reference="it is not called", bug_above=1)


def answered(name: str, peft: Peft | None, expected: bool, first: bool, p: probe.Probe) -> None:
    """What is said of peft, by both names, and again; ``first``: the constant is asked for before the function."""
    beside(peft)
    utils = p.upstream(UTILS)
    asks: list[Callable[[], Any]] = [lambda: utils.PEFT_AVAILABLE, lambda: utils.is_peft_available()]
    said = [ask() for ask in (asks if first else asks[::-1])]
    exec("from liger_kernel.utils import PEFT_AVAILABLE", scope := dict[str, Any]())
    said += [scope["PEFT_AVAILABLE"], *(ask() for ask in asks)]
    p.guard(f"{name}: wrong answers", sum(one is not expected for one in said), 0, reference=str(expected))
    count = 0 if peft is None else peft.seen
    p.guard(f"{name}: imports of peft beyond one", max(count - 1, 0), 0, reference="asked once")
    p.guard(
        f"{name}: peft that is there and not imported", expected and "peft" not in sys.modules, 0, reference="it is"
    )


def otherwise(p: probe.Probe) -> None:
    """A peft whose import fails by anything else than an ImportError is told, where it is imported, each time."""
    beside(Peft(RuntimeError("an operator is registered twice")))

    def ask() -> Any:
        return p.upstream(UTILS).is_peft_available()

    for time in ("first", "second"):
        p.guard(
            f"asked the {time} time: an error of peft's own is hidden", not raises(ask), 0, reference="RuntimeError"
        )


def raises(call: Callable[[], Any]) -> bool:
    try:
        call()
    except RuntimeError:
        return True
    return False


def meanwhile(p: probe.Probe) -> None:
    """Another thread asks while peft is being imported."""
    peft, said = Peft(), list[Any]()
    beside(peft)
    asking = threading.Thread(target=lambda: said.append(p.upstream(UTILS).is_peft_available()))
    peft.within = asking.start
    utils = p.upstream(UTILS)
    said.append(utils.is_peft_available())
    asking.join()
    p.guard("asked meanwhile: wrong answers", sum(one is not True for one in said), 0, reference="True")


def other_names(p: probe.Probe) -> None:
    """A name that is not there stays so."""
    beside(Peft())
    utils = p.upstream(UTILS)
    for name in ("PEFT", "nothing", "__path__"):
        p.guard(f"utils.{name} is there", hasattr(utils, name), 0, reference="it is not")


CASES: tuple[Callable[[probe.Probe], None], ...] = (
    *(partial(imported, name) for name in OPERATORS),
    partial(answered, "with peft", Peft(), True, True),
    partial(answered, "with peft, the function first", Peft(), True, False),
    partial(answered, "without peft", None, False, True),
    partial(answered, "with a peft that lacks what it needs", Peft(ImportError("no accelerate")), False, True),
    partial(answered, "with that, the function first", Peft(ModuleNotFoundError("accelerate")), False, False),
    otherwise,
    meanwhile,
    other_names,
)


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cpu":
        p.triton_interpreter()
    p.ranks(len(CASES), lambda rank: CASES[rank](p))  # each in a process that has imported nothing of the package


if __name__ == "__main__":
    probe.main(reproduce, pack=44, package="liger_kernel", minimal=minimal)
