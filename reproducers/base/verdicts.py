"""Verdict words, sentinels and exit codes: what each means and what to do about it."""

from __future__ import annotations

from enum import StrEnum

from patchlane.base.exits import Exit

EXIT_MEANING = {
    Exit.OK: "every verdict is the expected one, or is for a folder or commit of which the pack claims nothing; under"
    " --bisect: good, the bug is not here",
    Exit.CONTRADICTED: "a verdict contradicts the expected one, or a check failed; under --bisect: bad",
    Exit.USAGE: "wrong usage or bad input; the message names the file, the field and the remedy",
    Exit.FAULT: "a fault of patchlane itself; the message names the log to report",
    Exit.BROKEN: "model.train --invariants: what must hold of a step whatever its loss does did not; the message names"
    " it, the step and the rank, and nothing of that step is in a checkpoint",
    Exit.STOPPED: "model.train was asked to stop and has steps left; under torchrun, which would start its ranks again,"
    " the code is 0; either way stopped.json in the run's folder says so once a checkpoint holds the last step",
    Exit.CANNOT_TEST: "cannot be tested on this host, or the verb cannot start here; the message names what is missing"
    " and the command that gets it",
    Exit.BISECT_SKIP: "only under --bisect: nothing was measured, of this revision or at all",
    Exit.INTERRUPTED: "interrupted, or the output's reader is gone; nothing half-written, no child left behind",
}


EXIT_REMEDY = {
    Exit.OK: "nothing",
    Exit.CONTRADICTED: "read the closing table: every contradiction is listed there with its reason and its remedy",
    Exit.USAGE: "do what the message's fix line says; --help lists the options",
    Exit.FAULT: "report it with that log; running again is safe",
    Exit.BROKEN: "do what the message's last lines say; the last checkpoint was checked before it was written",
    Exit.STOPPED: "the same command goes on from that checkpoint",
    Exit.CANNOT_TEST: "run that command; python -m reproducers.doctor lists all that is missing at once",
    Exit.BISECT_SKIP: "nothing, git bisect skips it; the reason is on stderr",
    Exit.INTERRUPTED: "the command that it names: finished runs and what was fetched are kept",
}


class Verdict(StrEnum):
    REPRODUCED_AND_FIXED = "REPRODUCED_AND_FIXED"
    REPRODUCED = "REPRODUCED"
    FIXED_UPSTREAM = "FIXED_UPSTREAM"
    FIX_INEFFECTIVE = "FIX_INEFFECTIVE"
    FIX_REGRESSES = "FIX_REGRESSES"
    DIFFERENT_FAILURE = "DIFFERENT_FAILURE"
    UNTESTABLE = "UNTESTABLE"
    INCONCLUSIVE = "INCONCLUSIVE"
    PATCH_STALE = "PATCH_STALE"


VERDICT_MEANING = {
    Verdict.REPRODUCED_AND_FIXED: "pristine shows the bug, patched is healthy, guards hold in both, patched code ran",
    Verdict.REPRODUCED: "pristine shows the bug; no fix was asked for",
    Verdict.FIXED_UPSTREAM: "pristine is healthy on a tree that has the code",
    Verdict.FIX_INEFFECTIVE: "the patch applies, and the bug is still there",
    Verdict.FIX_REGRESSES: "a guard that passed on the pristine tree fails on the patched one",
    Verdict.DIFFERENT_FAILURE: "an arm failed, but not by the bug's own signature",
    Verdict.UNTESTABLE: "this host, lane or tree cannot decide",
    Verdict.INCONCLUSIVE: "the arms ran but do not prove the claim (a guard fails on the pristine tree, repeats"
    " disagree, or the patched code was not seen executing)",
    Verdict.PATCH_STALE: "the patch does not apply to this tree as it stands",
}


VERDICT_REMEDY = {
    Verdict.REPRODUCED_AND_FIXED: "nothing; python -m reproducers.manifest refresh imports the receipt",
    Verdict.REPRODUCED: "run both arms (--arm both) to have the fix ruled on, where the pack offers one",
    Verdict.FIXED_UPSTREAM: "nothing for a release from pins.fixed on, or for a folder or commit that is no pin; for"
    " another release drop the patch: set pins.fixed in pack.yaml, or make the pack a guard",
    Verdict.FIX_INEFFECTIVE: "correct fix.patch; the checks still marked bug in the patched arm say where",
    Verdict.FIX_REGRESSES: "correct fix.patch; the guards named in the reason say what it breaks",
    Verdict.DIFFERENT_FAILURE: "read the log; the same command with -v prints all that the arm said",
    Verdict.UNTESTABLE: "get what the reason names; python -m reproducers.doctor prints the commands; the receipt is"
    " never imported and lowers no verdict",
    Verdict.INCONCLUSIVE: "correct the reproducer until it proves what the reason names, or the patch where a part of"
    " it cannot run; after --arm patched, run both",
    Verdict.PATCH_STALE: "rebase fix.patch on that tree, or retire the pack for it if the tree already has the fix",
}

SENTINEL_MEANING = {
    "BUG_REPRODUCED": "one arm: at least one bug check shows the bug by its own signature, and none fails otherwise",
    "FIX_VALIDATED": "both arms: the pristine tree shows the bug, the patched one is healthy, and the patched code ran",
    "MEMORY_SAVE_VERIFIED": "a memory pack: FIX_VALIDATED, and each peak that was over its limit is under it now",
    "BITWISE_IDENTICAL": "both arms: FIX_VALIDATED, and every tensor compared is equal bit for bit",
    "REGRESSION_GUARD_PASSED": "a guard: the broken release shows the bug, the fixed one is healthy, in the same run",
}

SENTINEL_REMEDY = {
    "BUG_REPRODUCED": "nothing on a tree that should have the bug; on a patched tree, correct fix.patch",
    "FIX_VALIDATED": "nothing; the receipt of the run is the evidence",
    "MEMORY_SAVE_VERIFIED": "nothing",
    "BITWISE_IDENTICAL": "nothing",
    "REGRESSION_GUARD_PASSED": "nothing",
}

# The verdicts of a lane that shows the bug, and of a lane that shows none.
BROKEN = (Verdict.REPRODUCED, Verdict.REPRODUCED_AND_FIXED)
HEALTHY = (Verdict.FIXED_UPSTREAM,)
