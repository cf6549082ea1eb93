"""What `make test` leaves to `make test-all`: such a test gets the marker ``rest`` when it is collected.

Each test is in exactly one of the two. Engine, Python and torch are every pack's: were they compared as well, a changed
engine would make all packs run. Instead a sample of packs runs each time, and the toys try the engine.
"""

from reproducers.base.errors import PatchlaneError
from reproducers.evidence import receipts
from reproducers.evidence.manifest import changed_since
from reproducers.record.schema import ROOT
from reproducers.trial.experiment import Request, expected

SAMPLE = {9, 13, 15}  # the quickest bug, of which every wrong patch is tried, report and guard: three upstreams
TRAINED = "test_train_recompute.py"  # two short runs of the whole model
# Each starts dozens of interpreters, and only what asks beyond the two arms is in question.
BEYOND = {"test_examination.py", "test_sitting.py", "test_bisect.py", "test_sweep.py", "test_upstream_tests.py"}


def covered(pack, folder=ROOT / "receipts"):
    """Whether a CPU receipt in ``folder`` has the expected verdict, and reproducer, patch and pin are still its own."""
    try:
        path = receipts.newest(pack, "cpu", folder)
        return (
            path is not None
            and not changed_since(pack, path)
            and receipts.read(path).verdict in expected(pack, Request())
        )
    except PatchlaneError:  # altered or broken off
        return False


def rests(marks, pack, file):
    """Whether ``make test`` leaves out a test with these markers, of this pack (or None), in the file of this name."""
    if "pack" in marks:
        return pack is None or not (pack.number in SAMPLE or ("cpu" in pack.lanes and not covered(pack)))
    return "site" in marks or file in BEYOND or ("train" in marks and file != TRAINED)
