"""How a script of this folder begins that runs kernels under Triton's interpreter, in a process of its own."""

from model.patched import overlay
from patchlane.base.errors import CannotTestHere
from reproducers.probe.checks import CannotTest
from reproducers.probe.lanes import triton
from reproducers.upstream.store import Store


def begin(*, patched: bool = False) -> None:
    """Before anything imports triton; ``patched`` puts the released stack on the path. Exits 77 without either."""
    try:
        triton.interpret_triton()
        if patched:
            overlay.activate(overlay.build(Store(), overlay.chosen("all"), "cpu"))
    except (CannotTest, CannotTestHere) as error:
        print(error)
        raise SystemExit(77) from None
