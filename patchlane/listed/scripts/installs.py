"""What the commands of a script install: pip, uv, Poetry, PDM, conda, and clones of known repositories."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from patchlane.listed import conda, lines, origins
from patchlane.listed.reading import Reading
from patchlane.listed.scripts import shell
from patchlane.listed.scripts.shell import Command, Variables
from patchlane.listed.scripts.tools import (
    APART,
    CARRYING,
    CHANGING,
    CONDA_FLAGS,
    CONDA_VALUED,
    FLAGS,
    HARMLESS,
    INSTALLING,
    OWN,
    PINS,
    PIP_QUIET,
    QUIET,
    QUOTING,
    SETTINGS,
    SHELLS,
    SPECIAL,
    STARTS,
    VALUED,
    WRAPPING,
)


def read(text: str, reading: Reading, variables: Variables | None = None) -> Reading:
    """Read the install commands of a shell script into ``reading``."""
    reading.script = True
    found, bad = shell.commands(text, variables or Variables())
    reading.commands += [command.text for command in found]
    for place, said in bad:
        reading.miss(place, said, "no bash that could be read")
    taken = {line for command in found for line in range(command.line, command.line + command.text.count("\n") + 1)}
    for command, ref in zip(found, checked_out(found), strict=True):
        if command.words[:1] in (["cd"], ["pushd"], ["popd"]) and not OWN.search(command.text):
            reading.moved = True
        run(command, reading, ref)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and number not in taken:
            if reading.upstream(line) and not line.lstrip().startswith("#"):
                reading.miss(number, line, "names an upstream in a way that is not read")
            else:
                reading.skip(number, line, "no command")
    return reading


def checked_out(commands: list[Command]) -> list[str | None]:
    """For each command that clones, what the commands after it check out in the clone, "" where none changes it.

    None where they change it in another way.
    """
    refs: list[str | None] = [""] * len(commands)
    clone, folder, inside = -1, "", ""
    for number, command in enumerate(commands):
        plain = [word or "" for word in command.words]
        if plain[:1] == ["git"] and "clone" in plain:
            clone, folder = number, _folder(plain)
        elif plain[:1] in (["cd"], ["pushd"]) and len(plain) == 2:
            inside = plain[1].rstrip("/").rpartition("/")[2]
        elif plain[:1] == ["git"] and clone >= 0 and {*CHANGING} & {*plain}:
            told = plain[1] in ("checkout", "switch") and inside == folder and len(plain) == 3 and refs[clone] == ""
            refs[clone] = plain[2] if told else None
        elif plain[:1] == ["patch"] and clone >= 0:
            refs[clone] = None
    return refs


def _folder(words: list[str]) -> str:
    """The last name of the folder that ``git clone URL [FOLDER]`` makes."""
    place = next((n for n, word in enumerate(words) if n > 1 and origins.is_repository(word)), 0)
    named = words[place + 1 : place + 2]
    name = named[0] if named and not named[0].startswith("-") else words[place]
    return name.rstrip("/").rpartition("/")[2].removesuffix(".git")


def run(command: Command, reading: Reading, ref: str | None = "") -> None:
    """Take what one command installs. ``ref``: of a clone, what is checked out in it afterwards, None: not known."""
    words = _started(command.words)
    if ref != "" and "clone" in words:
        words = [*words, "--branch", ref]
    verb, name = _verb(words), Path(words[0] or "").name if words else ""
    if verb is not None and not SETTINGS.search(command.text):
        verb(command, words, reading)
    elif None in words[:1]:
        reading.miss(command.line, command.text, "which command it is only a run tells")
    elif SETTINGS.search(command.text):
        reading.miss(command.line, command.text, "names a file that pip or uv reads besides")
    elif name in ("echo", "printf") and "$(" not in command.text and ">" not in command.text:
        reading.skip(command.line, command.text, "prints")
    elif words and name not in HARMLESS.split():
        reading.miss(command.line, command.text, "what this program brings is not in this file")
    elif INSTALLING.search(f"{command.text} {command.document}") and name not in QUOTING:
        reading.miss(command.line, command.text, "may install something in a way that is not read")
    elif "submodule" in words[:2]:
        reading.miss(command.line, command.text, "brings code that another file names")
    elif reading.upstream(command.text) and (name in CARRYING.split() or "remote" in words):
        reading.miss(command.line, command.text, "names an upstream in a way that is not read")
    else:
        reading.skip(command.line, command.text, "installs nothing")


def _started(words: list[str | None]) -> list[str | None]:
    """The words from the program on that installs, whatever starts it: sudo, srun, env."""
    first = Path(words[0]).name if words and words[0] else ""
    if (
        not words
        or STARTS.fullmatch(first)
        or first in APART
        or (first in (*HARMLESS.split(), *SPECIAL) and first not in WRAPPING)
    ):
        return words
    start = next((n for n, word in enumerate(words) if word and STARTS.fullmatch(Path(word).name)), None)
    return words if start is None else words[start:]


UNTOLD = "\0"  # a word that only a run tells, where texts are compared
Verb = Callable[[Command, list[str | None], Reading], None]


def _verb(words: list[str | None]) -> Verb | None:
    """What reads this command; None: nothing that installs."""
    name = Path(words[0]).name if words and words[0] else ""
    rest = [UNTOLD if word is None else word for word in words[1:]]
    if re.fullmatch(r"python[\d.]*", name):
        return _python(rest)
    if re.fullmatch(r"pip[\d.]*", name):
        return _pip_verb(rest, 1)
    if name == "uv" and rest[:1] == ["pip"]:
        return _pip_verb(rest[1:], 2)
    if name in ("uv", "poetry", "pdm") and rest[:1] == ["add"]:
        return lambda command, words, reading: _pip(command, words[2:], reading)
    if name in ("conda", "mamba", "micromamba") and (verb := _conda_verb(rest)):
        return verb
    if name in ("mamba", "micromamba", *QUIET):
        quiet = rest[:1] and rest[0] in QUIET.get(name, QUIET["conda"])
        return _nothing if quiet or not rest else _elsewhere
    if name == "git" and "clone" in rest:
        return _clone
    return _script_verb(words, name)


def _nothing(command: Command, words: list[str | None], reading: Reading) -> None:
    reading.skip(command.line, command.text, "installs nothing")


def _elsewhere(command: Command, words: list[str | None], reading: Reading) -> None:
    reading.miss(command.line, command.text, "installs what is not in this file, or in a way that is not read")


def _python(rest: list[str]) -> Verb | None:
    options = next((n for n, word in enumerate(rest) if not re.fullmatch(r"-[IsSEBbdOquvX]+", word)), len(rest))
    rest = rest[options:]
    if rest[:1] == ["-mpip"]:
        return _pip_verb(rest[1:], 2 + options)
    if rest[:2] == ["-m", "pip"]:
        return _pip_verb(rest[2:], 3 + options)
    if rest[:2] == ["-m", "venv"] or rest[:1] in (["--version"], ["-V"]):
        return _nothing
    return _program


def _program(command: Command, words: list[str | None], reading: Reading) -> None:
    """``python -c TEXT`` whose text installs nothing; any other program is another file."""
    text = command.text + command.document
    if ("-c" in words or command.document) and not re.search(r"pip|subprocess|os\.system|install", text):
        return reading.skip(command.line, command.text, "a program that installs nothing")
    return reading.miss(command.line, command.text, "what this program brings is not in this file")


def _pip_verb(rest: list[str], skipped: int) -> Verb | None:
    """pip's options, with their values, may stand before its verb."""
    place = 0
    while place < len(rest) and rest[place].startswith("-"):
        place += 2 if rest[place] in VALUED.split() or rest[place] == "--default-timeout" else 1
    verb = rest[place] if place < len(rest) else ""
    if verb in ("install", "sync"):
        return lambda command, words, reading: _pip(command, words[skipped + place + 1 :], reading)
    if verb == "uninstall":
        return _uninstall
    setting = verb == "config" and re.search("constraint|requirement", " ".join(rest))
    return _nothing if (verb in PIP_QUIET.split() and not setting) or not verb else _elsewhere


def _uninstall(command: Command, words: list[str | None], reading: Reading) -> None:
    if reading.upstream(command.text) or "mamba" in command.text or None in words:
        return reading.miss(command.line, command.text, "takes away what may be installed before or after")
    return reading.skip(command.line, command.text, "installs nothing")


def _pip(command: Command, words: list[str | None], reading: Reading) -> None:
    """Take pip's arguments, each as a line of a requirements file."""
    waiting, before = list(words), len(reading.required)
    if "--dry-run" in words:
        return reading.skip(command.line, command.text, "installs nothing")
    while waiting:
        word = waiting.pop(0)
        option, _, value = (word or "").partition("=")
        if word is None:
            reading.miss(command.line, command.text, "what it installs only a run tells")
        elif option in PINS:
            _named(PINS[option], value or (waiting.pop(0) if waiting else None), command, reading)
        elif word in FLAGS.split() or (option in VALUED.split() and value):
            continue
        elif word in VALUED.split():
            waiting[:1] = []
        elif word.startswith("-"):
            reading.miss(command.line, command.text, f"an option that is not known: {word}")
        elif re.search(r"[*?]", word) and not re.search(r"[=<>~!]", word):
            reading.miss(command.line, command.text, f"which files {word} means only a run tells")
        else:
            lines.argument(_pep508(word), command.line, reading)
    if {"-U", "--upgrade", "--force-reinstall", "-I", "--ignore-installed", "--reinstall"} & {*words}:
        again = "installed anew, in a version that is not named"
        taken = reading.required[before:]
        anew = [x if x.version or x.ref or x.why or x.spec else replace(x, why=again) for x in taken]
        reading.required[before:] = anew
    return reading.skip(command.line, command.text, "read")


def _named(option: str, value: str | None, command: Command, reading: Reading) -> None:
    if value is None:
        reading.miss(command.line, command.text, f"which file {option} names only a run tells")
    elif option != "-e" and (why := reading.astray(value, command.text)):
        reading.miss(command.line, command.text, f"names another file: {value}: {why}")
    else:
        lines.argument(f"{option} {value}", command.line, reading)


def _pep508(word: str) -> str:
    """Poetry's and PDM's NAME@VERSION as pip writes it."""
    found = re.fullmatch(r"([\w.\[\],-]+)@(\d[\w.+!]*)", word)
    return f"{found[1]}=={found[2]}" if found else word


def _conda_verb(rest: list[str]) -> Verb | None:
    if rest[:1] == ["run"]:
        return _conda_run
    if rest[:2] in (["env", "create"], ["env", "update"]):
        return _conda_env
    return _conda if rest[:1] in (["install"], ["create"], ["update"]) else None


def _conda(command: Command, words: list[str | None], reading: Reading) -> None:
    waiting = words[2:]
    while waiting:
        word = waiting.pop(0)
        option, _, value = (word or "").partition("=")
        if word is None:
            reading.miss(command.line, command.text, "what it installs only a run tells")
        elif option in CONDA_VALUED:
            waiting[:1] = waiting[:1] if value else []
        elif option in ("-f", "--file"):
            _follow(command, value or (waiting.pop(0) if waiting else None), reading)
        elif word.startswith("-") and option not in CONDA_FLAGS.split():
            reading.miss(command.line, command.text, f"an option that is not known: {word}")
        elif not word.startswith("-"):
            conda.required(word, command.line, reading)
    reading.skip(command.line, command.text, "read")


def _follow(command: Command, name: str | None, reading: Reading) -> None:
    why = "only a run tells which" if name is None else reading.astray(name, command.text)
    if why or name is None:
        return reading.miss(command.line, command.text, f"names another file: {name}: {why}")
    return reading.follow(command.line, command.text, name)


def _conda_run(command: Command, words: list[str | None], reading: Reading) -> None:
    start = next((n for n, word in enumerate(words[2:], 2) if word and STARTS.fullmatch(Path(word).name)), len(words))
    run(command._replace(words=words[start:]), reading)


def _conda_env(command: Command, words: list[str | None], reading: Reading) -> None:
    """Environments by a file."""
    plain = [word or "" for word in words]
    files = [plain[n + 1] for n, word in enumerate(plain[:-1]) if word in ("-f", "--file")]
    files += [word.partition("=")[2] for word in plain if word.startswith(("--file=", "-f="))]
    files += [word for word in plain[3:] if word.endswith((".yml", ".yaml")) and not word.startswith("-")]
    _follow(command, files[0] if files else "environment.yml", reading)


def _clone(command: Command, words: list[str | None], reading: Reading) -> None:
    """A clone of a known upstream is code of it: of the tag or branch that is asked for, if it stays there."""
    plain = [word or "" for word in words]
    url = next((word for word in plain[2:] if origins.is_repository(word)), "")
    source = origins.of_url(url, reading.repositories)
    if not url and None in words:
        return reading.miss(command.line, command.text, "what it clones only a run tells")
    if not source.name:
        return reading.skip(command.line, command.text, "a clone of no known upstream")
    named = [words[n + 1] for n, word in enumerate(words[:-1]) if word in ("-b", "--branch")]
    named = named or [word.partition("=")[2] for word in plain if word.startswith("--branch=")]
    ref = (named[-1] if named else "") or ""
    why = "" if ref else "a clone, of which no commit is named here"
    return reading.require(command.line, source.name, ref=ref, repository=source.repository, why=why)


def _script_verb(words: list[str | None], name: str) -> Verb | None:
    """Other scripts, and programs that a shell reads from a text or a pipe."""
    if name in SHELLS and any(re.fullmatch(r"-[a-z]*c", word or "") for word in words[1:]):
        return _text
    rest = [word for word in words[1:] if not (word or "").startswith("-")]
    if name in SHELLS or name in ("source", ".", "eval"):
        return _script if rest and rest[0] is not None and name != "eval" else _unknown
    return _script if name.endswith(".sh") else None


def _text(command: Command, words: list[str | None], reading: Reading) -> None:
    place = next(n for n, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word or "")) + 1
    text = words[place] if place < len(words) else None
    if text is None:
        return _unknown(command, words, reading)
    read("\n" * (command.line - 1) + text, reading)
    return None


def _script(command: Command, words: list[str | None], reading: Reading) -> None:
    name = words[0] if (words[0] or "").endswith(".sh") else next(w for w in words[1:] if not (w or "").startswith("-"))
    if (name or "").rpartition("/")[2] in ("conda.sh", ".bashrc", "bashrc", "profile", ".profile", "/dev/null"):
        return reading.skip(command.line, command.text, "sets up the shell")
    return _follow(command, name, reading)


def _unknown(command: Command, words: list[str | None], reading: Reading) -> None:
    if command.document:
        read("\n" * command.line + command.document, reading)
    elif command.fed or words[0] == "eval" or len(words) > 1:
        reading.miss(command.line, command.text, "runs a program that is not in this file")
    else:
        reading.skip(command.line, command.text, "a shell")
