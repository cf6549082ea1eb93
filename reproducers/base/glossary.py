"""The project's words: states of a pack, outcomes of an arm, and every term that texts and options use."""

from __future__ import annotations

from typing import NamedTuple


class Word(NamedTuple):
    """The meaning of a word and, if there is something to do, the next step."""

    meaning: str
    next_step: str = ""


# A state with a reason in brackets, as in held(why), is its first word here.
STATES = {
    "draft": Word(
        "no receipt shows the bug yet, or the newest receipt of a lane contradicts it",
        "python -m reproducers.run PACK, then python -m reproducers.manifest refresh",
    ),
    "reproduced": Word(
        "receipts show the bug, and no fix is offered (kind report), or a lane has no receipt of the fix yet",
        "for another kind than report: run the lanes that the manifest lists without a receipt",
    ),
    "validated": Word(
        "every lane has a receipt in which the pristine tree shows the bug and the patched one is healthy",
        "python -m reproducers.preflight PACK says what is left before it may be filed",
    ),
    "ready": Word(
        "validated, and only the approval is open of preflight's points; preflight reports this, the manifest does not",
        "python -m reproducers.approve PACK, by the person who files it",
    ),
    "approved": Word(
        "approval.yaml names the person who read exactly these files; any change voids it",
        "the person files it and writes filed, filed_url and filed_on into pack.yaml",
    ),
    "filed": Word("pack.yaml has the URL of the issue, pull request or comment", "follow the thread"),
    "merged": Word(
        "upstream's branch has a fix: the pack lists a thread that fixes it, with state merged",
        "set pins.fixed to the first release that has it",
    ),
    "retired": Word("no supported release has the bug any more; the folder stays, and its number is never reused"),
    "held": Word("not to be filed, for the reason in brackets", "change filing.decision when the reason has gone"),
    "guard": Word("fixed upstream; receipts show the broken release with the bug and the fixed one without it"),
    "stale": Word(
        "the reproducer or the patch was changed after the newest receipt of a lane",
        "python -m reproducers.run PACK, on the lanes that the manifest names",
    ),
    "fixed-upstream": Word(
        "a candidate: the newest receipt finds the pinned tree healthy",
        "set pins.fixed, or make the pack a guard",
    ),
}
OUTCOMES = {
    "bug": Word("the arm, or a check of it, shows the bug by its own signature or beyond its own limit"),
    "healthy": Word("every bug check of the arm passed"),
    "different": Word("something failed, but not as the bug does: a crash, or a number between both limits"),
    "cannot_test": Word("this host or tree cannot answer", "get what the reason names"),
    "passed": Word("a guard holds"),
    "failed": Word("a guard does not hold"),
    "noted": Word("a number or digest that decides nothing by itself, kept in the record"),
    "skipped": Word("a check that this host cannot make; never counted as passed"),
}
ROLES = {
    "bug": Word("a check of the pack's claim"),
    "guard": Word("a check of something that works beside the bug and must work in every arm"),
    "note": Word("a measured number that decides nothing"),
    "digest": Word("a hash of tensors or bytes that must be the same in both arms, bit for bit"),
}
KINDS = {
    "bug": Word("wrong numbers, a crash or a waste, with a patch"),
    "memory": Word("too much memory, with a patch; a peak in bytes is measured"),
    "performance": Word(
        "too much work for the same values, with a patch; the work is counted and the values are compared"
    ),
    "refactor": Word("code that is changed without changing any result; tensors are compared bit for bit"),
    "report": Word("a bug for which the pack offers no patch"),
    "guard": Word("a bug that upstream has fixed; the pack stays to show its return"),
}
HARMS = {
    "wrong numbers": Word("a run goes on with values, gradients or checkpoints that are wrong"),
    "crash": Word("a run ends with an error, or a kernel does not compile"),
    "memory": Word("a run needs memory that it need not need"),
    "slow": Word("a run takes time that it need not take, by what is measured or counted"),
    "trap": Word("nothing fails at first: a setting has no effect, or what was saved cannot be loaded"),
}
APPLIES = {
    "CLEAN": Word("the patch applies with neither fuzz nor offset"),
    "ALREADY_APPLIED": Word("the tree already has the patch's change", "retire the pack for this release"),
    "CONFLICT": Word("the patch does not apply as it is", "rebase it on this tree"),
}
DECISIONS = {
    "issue": Word("file an issue"),
    "pr": Word("open a pull request"),
    "comment": Word("comment on the thread that filing.thread names"),
    "hold": Word("file nothing for now"),
    "none": Word("file nothing: nobody upstream has to act"),
}
RELATIONS = {
    "reports it": Word("the thread is about the same bug"),
    "introduced it": Word("the change that brought the bug"),
    "fixes it": Word("a change that removes the bug"),
    "overlaps": Word("a change to the same code, which the pack's fix would duplicate"),
    "neighbour": Word("about code close by, or the same mistake elsewhere"),
}
TERMS = {
    "pack": Word("one bug: its reproducer, its patch if it has one, and the facts a maintainer needs; packs/NN_slug/"),
    "upstream": Word("the project that has the bug, and its published code"),
    "reproducer": Word("the pack's program; it measures the tree that it gets and is not told whether it is patched"),
    "minimal": Word("the first function of a reproducer: the bug in at most 15 lines, without the probe"),
    "probe": Word("the module with which a reproducer imports upstream from the tree under test and records checks"),
    "check": Word("one named claim of a reproducer, with the measured value, its limit and its reference"),
    "signature": Word("the marks of the pack's crash: exception type, message and a frame in upstream's code"),
    "lane": Word("the kind of host that a pack runs on: cpu or cuda"),
    "arm": Word("one run of the reproducer on one tree, in its own process: pristine, patched or, for guards, fixed"),
    "pristine": Word("the arm on upstream's tree as published"),
    "patched": Word("the arm on the same tree with the pack's patch"),
    "fixed": Word("a pin of a release that has a fix, and a guard's arm on it"),
    "live": Word("the pin of the tree that the pack's claim and its patch are about"),
    "pin": Word("a named upstream tree of a pack: a release with the digests of its files, or a commit by full SHA"),
    "tree": Word("upstream's files as one folder, known by the digest of all of them"),
    "artefact": Word("a wheel or sdist as the package index has it, known by its sha256"),
    "need": Word("a distribution that must be importable beside the code under test; packs/needs.yaml"),
    "store": Word("the folder of fetched artefacts and unpacked trees; PATCHLANE_STORE"),
    "hunk": Word("one connected change of a patch; every hunk of a patch must be seen running"),
    "census": Word(
        "what calls of upstream do beside their values and under other conditions, on the pristine and the patched tree"
    ),
    "ablation": Word("a trial that drops each hunk of a patch in turn; the bug has to come back"),
    "mutant": Word("a patch with one mistake in it, written by hand or generated: the pack's checks have to see it"),
    "mutation score": Word("the share of a pack's mutants that its checks see, those explained as equivalent left out"),
    "sentinel": Word("a word that is printed only when its checks have earned it, such as FIX_VALIDATED"),
    "outcome": Word("the result of one arm: bug, healthy, different or cannot_test"),
    "verdict": Word("the result of a run's arms together"),
    "state": Word("where a pack stands, derived from its record and its receipts"),
    "receipt": Word(
        "the record of one run, never edited: a JSON statement and its log by digest, receipts/NN/; of a training run"
        " its small files by digest, receipts/train/"
    ),
    "stamp": Word("the first line of an arm: pack, tree, host and versions"),
    "host alias": Word("the name that a machine has in receipts: chosen, never its network name; PATCHLANE_HOST"),
    "manifest": Word("manifest.yaml, generated from packs and receipts: which pack is validated, and on which host"),
    "lock": Word("model/patches.lock, one for each stack: the patches that training uses, by digest"),
    "path": Word("an implementation of a kind of layer; a run says which each layer takes, --path asks for one"),
    "recipe": Word("all hyperparameters of a training run, by name or in a YAML file; model/definition/recipes.py"),
    "coverage": Word(
        "the patched lines that a training run's first steps, checkpoint and evaluation executed; coverage.json"
    ),
    "ran": Word("lines of a patch that a training run executed, inside a function"),
    "compiled": Word("lines of a patch that went to a kernel's compiler in a training run"),
    "loaded": Word("lines of a patch that a training run only imported, which proves nothing of its functions"),
    "never": Word("lines of a patch that a training run neither executed nor imported"),
    "diagnosis": Word("what some steps of a run measure by layer, kind of parameter and rank; diagnosis.png"),
    "verb": Word("a command of this project: python -m reproducers.VERB or python -m model.VERB"),
    "room": Word("a folder of modules that imports only rooms below it; docs/architecture.md"),
    "carry": Word(
        "the kind of a patch of a team's own queue, kept by patchlane import; it owes no reproducer, is no pack"
    ),
    "overlay": Word("the upstream trees with all locked patches applied, from which training imports"),
    "bundle": Word("everything that chosen packs need on a host without network, in parts"),
    "series": Word("the patches of one upstream tree in an order that git am takes"),
    "body": Word("the text of an issue, pull request or comment, from a template and the numbers of receipts"),
    "dossier": Word("a body and everything that is attached to it"),
    "thread": Word("a public issue, pull request or commit that has to do with the pack's bug"),
    "threads": Word("of a search: something was found, and is listed under upstream_state.threads"),
    "preflight": Word("the check of everything that a pack still needs before it is filed"),
    "approval": Word("a person's yes to exactly the files that would be posted; approval.yaml"),
    "wave": Word("packs that are filed together, on one day"),
}
AUDITED = {
    "buggy": Word("the environment's code has the bug, and no patch", "what the answer's fix line says"),
    "patched": Word("the environment's code has the pack's patch"),
    "fixed": Word("the environment's code is that of a release or commit without the bug"),
    "unknown": Word(
        "nobody has measured this code, or what is installed is not told", "what the fix line says decides"
    ),
    "absent": Word("the code in question is not installed, or not required"),
    "not read": Word("a line or file of which the reader does not know what it installs", "write it as the fix says"),
    "code": Word("the answer rests on the digests of the functions in question"),
    "release": Word("the answer rests on the version that is stated"),
    "run": Word("the answer rests on a run of the reproducer on that code"),
}
APPLIED = {
    "applies": Word("git takes the patch with neither fuzz nor offset"),
    "offset": Word("the patch applies without fuzz, some lines further up or down; a run wants it without an offset"),
    "already in": Word("the release has what the patch adds", "retire the pack for it"),
    "partly in": Word("some hunks of the file apply, the others are in: of a carried patch"),
    "file gone": Word(
        "the tree lacks the file that a carried patch changes", "applies --upstream CLONE says who moved it"
    ),
    "in no wheel": Word("the file is of the repository alone, CMake or a test say", "applies --upstream CLONE"),
    "cannot judge": Word(
        "what a carried patch does there is no text: a link, a submodule, a binary file without its SHA"
    ),
    "not patched": Word("an installed package has the code as it is without a carried patch"),
    "conflicts": Word(
        "the patch does not apply", "python -m reproducers.sweep PACK asks whether the bug is there at all"
    ),
    "cannot test": Word("the tree could not be had, or not by parts", "--download, or what the reason names"),
}
SWEPT = {
    "bug": Word("a bug check shows the bug on that release or commit"),
    "healthy": Word("every bug check holds, on a tree that has the code"),
    "code not there": Word("the tree has no module that the reproducer asks for"),
    "cannot test": Word("the import fails, the arm hangs or fails otherwise, or the host lacks something"),
}
BISECTED = {
    "fixed": Word("--for fixed: the first release or commit without the bug is looked for"),
    "introduced": Word("--for introduced: the first release or commit with the bug is looked for"),
}
RESULTS = {
    "pass": Word("the point holds"),
    "fail": Word("the point does not hold", "the command below it"),
    "person": Word("only a person can go on, printed as a person's", "the command below it"),
    "a person's": Word("only a person can go on", "the command below it"),
}
POINTS = {
    "reproduced today": Word("a receipt of today, of the pack as it is, has the verdict that is owed"),
    "newest release": Word("a receipt says that upstream's newest release still has the bug"),
    "text": Word("the text renders in upstream's form, and lint finds nothing in it"),
    "reproducer attached": Word("the single file is the export of the reproducer as it is"),
    "no private words": Word("nothing that would be posted names this machine, its users or how the work went"),
    "upstream's formatter": Word("upstream's own formatter leaves the patch's lines as they are"),
    "applies to its branch": Word("git applies the attached patch to the tree that it is filed for"),
    "approval": Word("a person has read exactly these files"),
}
BLOCKERS = {
    "filed": Word("the pack was filed already"),
    "decision": Word("pack.yaml decides against filing it, or for another form"),
    "thread": Word("a comment has no thread that it belongs to"),
    "patch": Word("a pull request has no fix to offer"),
    "proof": Word("a lane lacks the receipt that shows bug and fix"),
    "receipt age": Word("a lane's newest receipt is older than the pack allows"),
    "fixed upstream": Word("a pin or a merged thread says that upstream has a fix"),
    "open pull request": Word("somebody else's pull request for the same thing is open"),
    "search age": Word("upstream was searched too long ago"),
    "thread age": Word("an open thread was looked up too long ago"),
}
WAVED = {
    "crash fix": Word("a bug that ends in a crash, with a patch"),
    "comment": Word("filed as a comment on a thread, whatever the bug is"),
    "fix": Word("any other bug, with a patch"),
    "refactor": Word("a change of code without a change of results, for which no user waits"),
    "report": Word("a bug without a patch"),
}
TESTED = {
    "passed": Word("upstream's test passes there"),
    "failed": Word("upstream's test fails there"),
    "error": Word("upstream's test could not be set up or torn down there"),
    "skipped": Word("upstream's test skips itself there"),
    "timed out": Word("the test, or its file, was ended at its limit"),
    "crashed": Word("the test, or its file, took its process with it"),
    "not run": Word("the process ended before the test began"),
    "finished": Word("the file's process ended by itself"),
    "another tree": Word("the process imported code from outside the tree under test: nothing of it counts"),
    "passed both": Word("the test passes on both trees"),
    "failed both": Word("the test fails on both trees: not by the patch"),
    "skipped both": Word("the test skips itself on both trees"),
    "mended": Word("the test fails without the patch and passes with it, again when it is run alone"),
    "broken": Word(
        "the test passes without the patch and fails with it, again when it is run alone", "correct the patch"
    ),
    "flaky": Word("the test does not end alike when it is run alone again"),
    "not compared": Word("the two ends say nothing of the patch"),
}
MUTATED = {
    "hand": Word("a mutant that a person wrote, in the pack's mutants/"),
    "generated": Word("a mutant made of a line that the patch adds"),
    "alternative": Word("another right fix, in the pack's alternatives/, which its checks must accept"),
    "alternatives": Word("the pack's alternatives alone"),
    "killed": Word("a check of the pack sees the mutant"),
    "survivor": Word(
        "no check sees the mutant", "a check that does, or its name and reason in mutants/equivalent.yaml"
    ),
    "equivalent": Word("a mutant that no check can see, with the reason in mutants/equivalent.yaml"),
}
LINTED = {
    "fault": Word(
        "a rule is broken; the line names file, rule and fix", "python -m reproducers.lint --list tells all rules"
    ),
    "exempted": Word("a rule is broken, and lint-exemptions.yaml says why that stays"),
    "skipped": Word("a rule could not look here", "the command that its line names"),
}
READY = {
    "can run": Word("this host has what the pack's lane needs"),
    "no lane": Word("the pack has no such lane, for the reason in pack.yaml"),
    "cannot": Word("this host lacks something for the lane", "the command in that line"),
}
ORIGINS = {
    "release": Word("the tree of a release on the package index, by sha256"),
    "commit": Word("the tree of a commit, by full SHA"),
    "folder": Word("a folder as it stands, by the digest of its files"),
    "made": Word("a tree that was put together here of others: needs, or what was built"),
}
LANES = {
    "cpu": Word("the lane that needs no GPU, and sees none"),
    "cuda": Word("the lane on a GPU"),
}
THREADS = {
    "open": Word("the thread was open when it was looked up"),
    "closed": Word("the issue or pull request was closed, the latter without its change"),
    "merged": Word("the pull request's change, or the commit, is on upstream's branch"),
}
CATEGORIES = {
    "graph safety": Word("code that cannot be captured in a CUDA graph, or waits for the GPU"),
    "tensor-wrapper dispatch": Word("subclasses of tensors that an operator does not see through"),
    "kernel numerics and dimensions": Word("wrong numbers, or shapes that a kernel does not take"),
    "integration and dispatcher gaps": Word("parts that work alone and not together"),
    "compiler": Word("a bug of a compiler of kernels"),
    "legality refactor": Word("code that is changed without a change of results"),
}
LOGGED = {
    "taken": Word("the trial became the default, or its lesson did"),
    "option": Word("it works and stays an option"),
    "rejected": Word("it did not pay or did not work; docs/log.md says by which numbers"),
    "open": Word("nobody has measured enough to decide"),
}
# The name of each group, in the order of docs/glossary.md.
GROUPS = {
    "state": STATES,
    "term": TERMS,
    "outcome": OUTCOMES,
    "role of a check": ROLES,
    "kind of pack": KINDS,
    "harm of a bug": HARMS,
    "way a patch applies": APPLIES,
    "filing decision": DECISIONS,
    "relation of a thread": RELATIONS,
    "answer of the audit": AUDITED,
    "answer of applies": APPLIED,
    "answer of a sweep": SWEPT,
    "goal of a bisection": BISECTED,
    "result of a point": RESULTS,
    "point of preflight": POINTS,
    "why a pack is not filed": BLOCKERS,
    "class in a wave": WAVED,
    "end of upstream's test": TESTED,
    "kind or end of a mutant": MUTATED,
    "word of lint": LINTED,
    "word of doctor": READY,
    "origin of a tree": ORIGINS,
    "lane": LANES,
    "state of a thread": THREADS,
    "category of a pack": CATEGORIES,
    "decision in the log": LOGGED,
}
# How the pages that are made of these words, and of the codes, begin
CODES_PAGE = """\
# Exit codes, verdicts and sentinels

Generated by `python -m reproducers.explain --markdown`; edit `reproducers/base/verdicts.py` instead. The same for every
pack and verb; `python -m reproducers.explain CODE` prints one row. Other words: [glossary](glossary.md).
"""
WORDS_PAGE = """\
# Glossary

Generated by `python -m reproducers.explain --glossary`; edit `reproducers/base/glossary.py` instead.
`python -m reproducers.explain WORD` prints one row. Verdicts, sentinels and exit codes: [their page](exit-codes.md).
"""
