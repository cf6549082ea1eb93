"""Defects to plant in real packs, each with the rule that must catch it, and harmless neighbours that none may."""

from dataclasses import dataclass, replace

BODY, RECORD, PATCH, NOTES, TESTS = "body.md.j2", "pack.yaml", "fix.patch", "notes.md", "tests.patch"
EXEMPTIONS, LOG, CODE = "lint-exemptions.yaml", "log", "reproducer.py"
MUTANT = "mutants/one_rank_uniform.patch"  # pack 01's
ALTERNATIVE = "alternatives/one_by_one.patch"  # pack 42's
UPSTREAM = "https://github.com/NVIDIA/Megatron-LM"
DSA = "megatron/core/transformer/experimental_attention_variant/dsa.py"
MILES = "https://github.com/radixark/miles/pull/975"  # a thread of pack 16
LIVE = "5be9626709af2722333bf54797c954c09edeada3"
HERE = "capture ends with a `RuntimeError` in `dsa.py`."
FULL = "+            # A fill; torch.tensor makes the host wait for its copy and cannot be captured.\n"
UNTIL = "until: the kernel returns dKV in fp32, beside which the guard that compares both roundings fails"  # pack 14's
ADDED = "uniform = torch.all(all_lens == sq)"  # by pack 01's patch


@dataclass
class Edit:
    """``old`` (appended at the end where empty) becomes ``new`` in a file of pack ``base``."""

    rule: str
    file: str
    old: str
    new: str
    base: int = 1
    fresh: bool = True

    def __str__(self):
        return f"{self.rule} {self.file} {self.new.strip()[-40:]!r}"


def said(rule, text, **more):
    """A sentence in the text of pack 01."""
    return Edit(rule, BODY, HERE, f"{HERE} {text}", **more)


def paragraph(rule, text, **more):
    return Edit(rule, BODY, HERE, f"{HERE}\n\n{text}\n\n", **more)


def noted(rule, text):
    return Edit(rule, NOTES, "", f"\n{text}\n")


def commented(rule, text, **more):
    """An added line of pack 01's patch."""
    return Edit(rule, PATCH, FULL, f"+            {text}\n", **more)


def thread(rule, url, state, relation):
    facts = {"title": "DSA", "state": state, "relation": relation, "looked_up": "2026-11-21"}
    new = f"  threads:\n    - url: {url}\n" + "".join(f"      {name}: {value}\n" for name, value in facts.items())
    return Edit(rule, RECORD, "  threads:\n", new)


def new_file(rule, path, text="x = 1\n", **more):
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{text}"
    return Edit(rule, PATCH, "", head, **more)


def exempted(rule, entry, **more):
    return Edit(rule, EXEMPTIONS, "", f"- {entry}\n", **more)


def secret(*parts):
    """A token that no scanner finds in this file."""
    return "".join(parts)


RAISE = '+        raise ValueError(f"H value of {H} is not a multiple of G value of {G}!")\n     NS'
BOTH = f"+    if H % G != 0:\n{RAISE}"
RANDOM = "q7Zr2LxV9bNw4TkC8mHs"
PLANTED = [
    paragraph("gfm-fence", "```python\nx = 1"),
    paragraph("gfm-fence", "````\nx = 1\n```"),
    paragraph("gfm-fence", "~~~\nx = 1\n```"),
    paragraph("gfm-table", "| a | b |\n|---|---|\n| c |"),
    paragraph("gfm-table", "| a | b |\n|---|---|\n| `c | d` | e |"),
    paragraph("gfm-table", "| a | b |\n\n|---|---|\n| c | d |"),
    paragraph("gfm-table", "| a | b |\n|---|\n| c | d |"),
    said("gfm-link", f"See [this] ({UPSTREAM}/pull/5246)."),
    said("gfm-link", "See [this](see the thread)."),
    said("gfm-residue", "{{ '{{ live.sha }}' }}"),
    said("gfm-residue", "{{ '{% if %}' }}"),
    paragraph("gfm-residue", "| a | b |\n|---|---|\n| c | {{ none }} |"),
    said("gfm-html", "This is <b>bold</b>."),
    paragraph("gfm-html", "<details><summary>log</summary>"),
    said("gfm-html", '<img src="x">'),
    paragraph("gfm-length", "{{ 'of the ' * 10000 }}"),
    paragraph("gfm-break", "One line  \nand another."),
    paragraph("gfm-break", "- One line\\\n  and another."),
    said("link-public", "See http://github.com/NVIDIA/Megatron-LM."),
    said("link-public", "![picture](https://i.example.org/x.png)"),
    said("link-public", "See www.example.org."),
    said("link-public", "See https://gist.example.org/x."),
    said("link-immutable", f"See [main]({UPSTREAM}/blob/main/{DSA}#L1)."),
    said("link-immutable", f"See [tag]({UPSTREAM}/tree/core_r0.19.0/megatron)."),
    said("link-immutable", "See https://pypi.org/project/megatron-core/."),
    said("link-diff", f"See {UPSTREAM}/pull/5246/files."),
    said("link-diff", f"See {UPSTREAM}/compare/{LIVE}...main."),
    said("link-diff", f"See {UPSTREAM}/pull/5246.diff."),
    said("link-short-sha", f"See {UPSTREAM}/blob/5be9626/{DSA}."),
    said("link-short-sha", f"See {UPSTREAM}/commit/d1cab16a."),
    said("link-short-sha", "Since d1cab16a it is so."),
    said("link-known", f"See {UPSTREAM}/commit/{'0' * 40}."),
    said("link-known", f"See {UPSTREAM}/issues/4242."),
    said("link-known", f"See https://github.com/state-spaces/mamba/blob/{LIVE}/setup.py."),
    said("link-reference", "This is #4242."),
    said("link-reference", "This is tile-ai/tilelang#5246."),
    said("private-path", "It ran in /home/someone/packs."),
    said("private-path", "It is in `/workspace/ours/packs`."),
    noted("private-path", "See file:///home/someone/x."),
    noted("private-path", "The log is /tmp/run7/out.log."),
    commented("private-path", "# measured in /workspace/ours"),
    Edit("private-path", LOG, "", "cache at /mnt/cache/x\n"),
    Edit("private-path", CODE, "", "# see /Users/someone/x\n"),
    said("private-email", "Ask someone@upstream.dev."),
    Edit("private-email", PATCH, "Origin: written", "From: A B <a.b@corporation.com>\nOrigin: written"),
    noted("private-host", "It ran on gpu07.cluster.local."),
    noted("private-host", "It ran on 10.20.30.40."),
    noted("private-host", "See https://wiki/packs."),
    noted("private-host", "See git.company.internal for more."),
    said("private-name", "It ran on orion-gpu7."),
    Edit("private-name", LOG, "", "run by mallory\n"),
    noted("private-token", secret("gh", "p_", RANDOM, RANDOM)),
    noted("private-token", secret("hf", "_", RANDOM, RANDOM)),
    noted("private-token", secret("AK", "IA", "Q7ZR2LXV9BNW4TKC")),
    noted("private-token", secret("-----BEGIN RSA ", "PRIVATE KEY-----")),
    Edit("private-token", LOG, "", f'api_key = "{RANDOM}"\n'),
    noted("private-code", "See refs/heads/wip."),
    said("private-code", "This is NVBUG-4711."),
    said("english-script", "Это не работает."),
    paragraph("english-script", "性能"),
    said("english-emoji", "🚀"),
    said("english-emoji", "It is fast :rocket: now."),
    paragraph(
        "english-words",
        "Die Funktion wartet bei jedem Schritt auf die Karte, und deshalb kann man den Graphen nicht aufnehmen, was"
        " sehr schade ist, weil die Schicht dadurch viel langsamer wird.",
    ),
    Edit("receipt-claim", BODY, '"CP=1: waits in a later forward and backward") }} | {{', '"CP=9") }} | {{'),
    said("receipt-claim", '{{ host("rocm") }}'),
    said("receipt-claim", "{{ speed }}"),
    said("receipt-claim", "{% if %}"),
    Edit("minimal-shape", CODE, "def minimal()", "LATER = 1\n\n\ndef minimal()", base=33),
    Edit("minimal-shape", CODE, "def minimal()", "def smallest()", base=33),
    Edit("receipt-stale", CODE, "", "# changed\n", fresh=False),
    Edit("receipt-stale", PATCH, "Origin: written", "Origin: rewritten", fresh=False),
    said("number-body", "It takes 3.7 ms."),
    said("number-log", "An error is 2.344e-07."),  # of the cpu lane, whose log is not attached
    paragraph("number-log", "| | error |\n|---|---|\n| gradients | 2.344e-07 |"),
    said("number-body", "It takes 41.5GiB."),
    said("number-body", "It is 7.3x faster."),
    said("number-body", "The error is 2.5e-3."),
    said("number-body", "With 12,345 tokens."),
    said("number-body", "It takes 93% of a step."),
    Edit("number-record", RECORD, "title: DSA makes", "title: For 12,345 tokens DSA makes"),
    Edit("number-record", RECORD, "effect: The host waits", "effect: For 9.7 ms the host waits"),
    Edit("number-record", RECORD, "The backward of the DSA", "For 3.7 ms the backward of the DSA"),
    new_file("patch-scope", "tools/x.py"),
    new_file("patch-scope", "megatron/core/README.txt"),
    new_file("patch-scope", "megatron/absent/x.py"),
    Edit("patch-clean", PATCH, "@@ -223,8 +223,14 @@", "@@ -225,8 +225,14 @@"),
    Edit("patch-clean", PATCH, "-        local_len = torch.tensor([sq]", "-        local_len = torch.tensor([sk]"),
    Edit("patch-clean", PATCH, "     expected_skv = sq * cp_size\n", "     expected_skv = sq + cp_size\n"),
    Edit("patch-clean", PATCH, "", "@@ -1,2 +1,9 @@\n cut short\n"),
    Edit("patch-minimal", PATCH, RAISE, RAISE.replace("\n", "  \n"), base=5),
    Edit("patch-minimal", PATCH, RAISE, RAISE.replace("\n", "\r\n"), base=5),
    Edit("patch-minimal", PATCH, RAISE, RAISE.replace("+        ", "+\t"), base=5),
    Edit("patch-minimal", PATCH, BOTH, "+\n+\n     NS", base=5),
    commented("patch-leftover", 'print("here")'),
    commented("patch-leftover", "# TODO: faster"),
    commented("patch-leftover", "breakpoint()"),
    Edit("header-grammar", PATCH, "Pack: 01\n", ""),
    Edit("header-grammar", PATCH, "Pack: 01\n", "Pack: 02\n"),
    Edit("header-grammar", PATCH, "Subject: DSA", "Title: DSA"),
    Edit("header-grammar", PATCH, "Licence: Apache-2.0", "Licence: MIT"),
    Edit("header-grammar", PATCH, f"({LIVE})", f"({LIVE[:12]})"),
    Edit("header-grammar", PATCH, "0.19.0 (", "0.19 ("),
    Edit("header-grammar", PATCH, "Upstream-Status: Pending", "Upstream-Status: not filed"),
    Edit("header-grammar", PATCH, "written for patchlane", "unknown"),
    Edit("header-grammar", PATCH, "Pack: 01\n", "Pack: 01\nPack: 01\n"),
    Edit("header-grammar", PATCH, "Pack: 01\n", "Pack: 01\nwritten in haste\n"),
    Edit("header-export", PATCH, "Subject: DSA", "Subject: [DSA]"),
    Edit("header-export", RECORD, "review_by: 2027-02-21", "review_by: 2026-11-21"),
    Edit("header-export", RECORD, "The backward of the DSA", "diff -u of the DSA"),
    Edit("header-export", RECORD, "The backward of the DSA", "Subject: the DSA"),
    commented("format-upstream", "cp_size = {  'a':1 }"),
    Edit(
        "format-upstream",
        PATCH,
        "+        uniform = torch.all(all_lens == sq)",
        "+        uniform = torch.all(all_lens==sq)",
    ),
    thread("filing-fixed", f"{UPSTREAM}/pull/7001", "merged", "fixes it"),
    Edit("filing-fixed", RECORD, "  main:\n", f"  fixed:\n    sha: {'a' * 40}\n  main:\n"),
    thread("filing-overlap", f"{UPSTREAM}/pull/7001", "open", "overlaps"),
    thread("filing-overlap", f"{UPSTREAM}/pull/7001", "open", "fixes it"),
    Edit("filing-thread", RECORD, "decision: pr", "decision: comment"),
    Edit("filing-thread", RECORD, "decision: pr", f"decision: comment\n  thread: {UPSTREAM}/pull/7001"),
    Edit("filing-patch", RECORD, "decision: issue", "decision: pr", base=6),
    Edit("filing-until", RECORD, UNTIL, "", base=14),
    Edit(
        "tests-added",
        RECORD,
        "no_tests: results do not change, and tests/ops/triton/test_mamba3_siso.py holds them; "
        "the attached file counts the products",
        "after: []",
        base=4,
    ),
    Edit("tests-added", RECORD, "decision: pr", "decision: pr\n  no_tests: too hard"),
    replace(new_file("tests-scope", "tools/test_x.py"), file=TESTS),
    replace(new_file("tests-scope", "tests/x.py"), file=TESTS),
    Edit("tests-scope", TESTS, "Licence: Apache-2.0", "Licence: MIT"),
    Edit("header-python", CODE, 'requires-python = ">=3.12"', 'requires-python = ">=3.11"', base=33),
    Edit("tests-scope", TESTS, "Origin: written for patchlane", "Origin: somebody"),
    Edit("body-expected", BODY, "{% block expected %}", "{% block expectation %}", base=16),
    Edit("body-expected", BODY, "`A_log` and `D` stay in fp32", "`HEALTHY`: `A_log` and `D` stay in fp32", base=16),
    Edit("foreign-thread", BODY, "There is no error:", f"\n\nFixes {MILES}\n\nThere is no error:", base=16),
    noted("pack-unwritten", "Limits: <write each limit with its reason>"),
    Edit("pack-mutants", MUTANT, "Why: ", "Because: "),
    Edit("pack-mutants", MUTANT, "Caught-By: rank ?: refuses", "Caught-By: rank ?: accepts"),
    Edit("pack-alternatives", ALTERNATIVE, "Why: ", "Because: ", base=42),
    Edit("pack-unreached", RECORD, "  cpu:\n", "  cpu:\n    unreached: [{line: no such line, reason: none}]\n"),
    Edit("private-path", MUTANT, "Why: ", "Why: (as in /home/someone/packs) "),
    exempted("exemption", "{rule: gfm-fence, pack: pack01, match: fence, reason: none, until: 2099-01-01}"),
    exempted("exemption", "{rule: no-such, pack: pack01, match: fence, reason: none, until: 2099-01-01}"),
    exempted("exemption", "{rule: gfm-fence, pack: pack99, match: fence, reason: none, until: 2099-01-01}"),
]
HARMLESS = [
    Edit("pack-unreached", RECORD, "  cpu:\n", f"  cpu:\n    unreached: [{{line: {ADDED!r}, reason: none}}]\n"),
    paragraph("gfm-fence", "````\n```\n````"),
    paragraph("gfm-table", "| a | b |\n|---|---|\n| c \\| d | e |"),
    paragraph("gfm-link", f"[one]({UPSTREAM}/pull/5246), and `[not](a link)`"),
    said("gfm-residue", "The dict `{{ '{{1: 2}}' }}` is one."),
    paragraph("gfm-html", "<details><summary>log</summary>\n\nIt ran for a<sub>i</sub> < b.<br>\n\n</details>"),
    paragraph("gfm-length", "{{ 'of the ' * 1000 }}"),
    paragraph("gfm-break", "One line\nand another,<br>and what `<br />` is.\n\n> Quoted\n> so."),
    said("link-public", "See https://arxiv.org/abs/2512.02556v1."),
    said("link-immutable", f"See {UPSTREAM}/blob/{LIVE}/{DSA}#L1 and https://pypi.org/project/megatron-core/0.19.0/."),
    said("link-diff", f"See {UPSTREAM}/pull/5246."),
    said("link-short-sha", f"See [d1cab16a]({UPSTREAM}/commit/d1cab16a010b2a51b538604135f1181e720c60f9)."),
    said("link-known", f"See {UPSTREAM}/pull/5099."),
    said("link-reference", "This is #5099, NVIDIA/Megatron-LM#5246; `x #4242` is code."),
    noted("private-path", "The store is <tmp>/run, the file a/data/x.py, half of 1/2, and ratio a/b."),
    noted("private-email", "Decorated by @triton.jit; git@github.com:o/r; someone@example.org."),
    noted("private-host", "On 127.0.0.1, cuDNN 9.10.2.21, http://localhost:80/, threading.local()."),
    noted("private-name", "Orion and mallorys are not our names; gpu7 neither."),
    noted("private-token", f"token = tokenizer_of_the_model; sha256 {'0a1b' * 16}"),
    noted("private-code", "SHA-256, ISO-8859 and UTF-16 are standards."),
    said("english-script", "With α ≤ β and naïve ∑, ℝ too."),
    said("english-emoji", "A ratio a:b:c, x → y, ✗ in code only: `✗ :rocket:`.".replace("✗ in", "§ in")),
    paragraph(
        "english-words", "The layer waits for the host in each step, and so none of it can be captured in a graph."
    ),
    said("receipt-claim", '{{ host("cpu") }}'),
    Edit("receipt-stale", CODE, "", "# changed\n"),
    Edit("minimal-shape", CODE, "def minimal()", "def minimal() -> None", base=33),
    said("number-log", "An error is `2.344e-07`."),
    said("number-body", "See `3.7 ms`, bf16, version 0.19.2 and `027fa4aa`, on 0.19.x."),
    Edit("number-record", RECORD, "title: DSA makes", "title: In 0.19.0 DSA makes"),
    new_file("patch-scope", "megatron/core/x.py"),
    Edit("patch-clean", PATCH, "Subject: DSA", "Subject: all of DSA"),
    Edit("patch-minimal", PATCH, BOTH, BOTH.replace("+    if H % G != 0:\n", "+\n"), base=5),
    commented("patch-leftover", "# blueprint(x) is not a print"),
    Edit("header-grammar", PATCH, "written for patchlane", "written anew for patchlane"),
    Edit("header-export", RECORD, "review_by: 2027-02-21", "review_by: 2026-12-31"),
    commented("format-upstream", "# cp_size = {  'a':1 }"),
    thread("filing-fixed", f"{UPSTREAM}/pull/7001", "merged", "neighbour"),
    thread("filing-overlap", f"{UPSTREAM}/pull/7001", "closed", "overlaps"),
    Edit("filing-thread", RECORD, "decision: pr", f"decision: comment\n  thread: {UPSTREAM}/pull/5246"),
    Edit("filing-patch", RECORD, "decision: pr", "decision: issue"),
    Edit("filing-until", RECORD, UNTIL, "until: the kernel returns dKV in fp32", base=14),
    Edit("tests-added", RECORD, "no_tests: results", "no_tests: the results", base=4),
    Edit("tests-scope", TESTS, "Subject: DSA: test that", "Subject: DSA: see that"),
    Edit("header-python", CODE, 'requires-python = ">=3.12"', 'requires-python = ">=3.13"', base=33),
    Edit("body-expected", BODY, "{% block expected %}", "{%- block expected %}", base=16),
    Edit("foreign-thread", BODY, "There is no error:", f"It was met in {MILES} too. There is no error:", base=16),
    noted("pack-unwritten", "It can write the loss, a < write b, and `x <writes> y`."),
    Edit("pack-alternatives", ALTERNATIVE, "Why: Each name", "Why: Every name", base=42),
    Edit(
        "pack-mutants",
        MUTANT,
        "Caught-By: rank ?: refuses lengths 64 and *",
        "Caught-By: rank 0: refuses lengths 64 and 16",
    ),
]
