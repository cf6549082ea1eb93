"""What the commands of a script install: pip, uv, Poetry, PDM, conda, and clones of known repositories."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from reproducers.studies.installed.listed import conda, lines, origins
from reproducers.studies.installed.listed.reading import Reading
from reproducers.studies.installed.listed.scripts import shell
from reproducers.studies.installed.listed.scripts.shell import Command, Variables

WRAPPERS = ("sudo", "env", "time", "nohup", "exec", "command", "nice", "eatmydata", "timeout")
SHELLS = ("bash", "sh", "zsh", "dash")
SPEAKERS = ("echo", "printf", "grep", "sed", "awk", "test", "[", "[[", "cat", "log", "which", "type", "export", "local")
INSTALLING = re.compile(  # what a command may not hold unread
    r"\b(pip[\d.]*|uv|conda|mamba|micromamba|poetry|pdm|pipenv|pixi|easy_install|setup\.py)\b.*\b(install|add|sync|develop|update)\b",
    re.DOTALL,
)
FLAGS = """
-U --upgrade -q -qq -qqq --quiet -v -vv -vvv --verbose --no-cache-dir --no-deps --no-build-isolation --user --pre
--force-reinstall --no-index --isolated --require-hashes --ignore-installed -I --no-compile --compile -y --yes
--break-system-packages --prefer-binary --disable-pip-version-check --no-input --no-warn-script-location --system
--no-cache --dev --reinstall --compile-bytecode --no-verify-hashes --exact --strict --no-sources --use-pep517
--no-use-pep517 --ignore-requires-python --no-python-version-warning --dry-run --locked --frozen --no-sync --offline
--native-tls --no-warn-conflicts --check-build-dependencies --active --no-color
"""  # of pip and uv, which take no value; an option that is in neither list is not understood
VALUED = """
-i --index-url --extra-index-url -f --find-links -t --target --prefix --root --src --platform --python-version
--implementation --abi --no-binary --only-binary --progress-bar -C --config-settings --config-setting --global-option
--build-option --install-option --hash --proxy --timeout --retries --trusted-host --cert --client-cert --cache-dir
--log --upgrade-strategy --root-user-action --report --use-feature --use-deprecated --python -p --torch-backend
--prerelease --resolution --index-strategy --keyring-provider --exclude-newer --index --default-index --link-mode
--no-build-isolation-package --upgrade-package -P --reinstall-package --no-build-package --no-binary-package --extra
--allow-insecure-host --refresh-package --python-platform
"""
FILES = """
-r -r --requirement -r --requirements -r -c -c --constraint -c --constraints -c -e -e --editable -e --override -c
--overrides -c
"""  # pairs: the option, and what a requirements file calls it
PINS = dict(zip(FILES.split()[::2], FILES.split()[1::2], strict=True))
INSTALLERS = {  # of what another file says
    *(("uv", "sync"), ("poetry", "install"), ("pdm", "install"), ("pdm", "sync"), ("pipenv", "install")),
    *(("pipenv", "sync"), ("pixi", "install"), ("pixi", "add"), ("pipenv", "add"), ("easy_install",)),
}


def read(text: str, reading: Reading, variables: Variables | None = None) -> Reading:
    """Read the install commands of a shell script into ``reading``."""
    found, bad = shell.commands(text, variables or Variables())
    for place, said in bad:
        reading.miss(place, said, "no bash that could be read")
    taken = {line for command in found for line in range(command.line, command.line + command.text.count("\n") + 1)}
    for command, ref in zip(found, checked_out(found), strict=True):
        run(command, reading, ref)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and number not in taken:
            reading.skip(number, line, "no command")
    return reading


def checked_out(commands: list[Command]) -> list[str]:
    """For each command that clones, the commit or branch that the commands after it check out in the clone, else ""."""
    refs = [""] * len(commands)
    clone, folder, inside = -1, "", ""
    for number, command in enumerate(commands):
        plain = [word or "" for word in command.words]
        if plain[:1] == ["git"] and "clone" in plain:
            clone, folder = number, _folder(plain)
        elif plain[:1] == ["cd"] and len(plain) == 2:
            inside = plain[1].rstrip("/").rpartition("/")[2]
        elif plain[:2] in (["git", "checkout"], ["git", "switch"]) and clone >= 0 and inside == folder:
            refs[clone] = plain[-1] if len(plain) > 2 else ""
    return refs


def _folder(words: list[str]) -> str:
    """The last name of the folder that ``git clone URL [FOLDER]`` makes."""
    place = next((n for n, word in enumerate(words) if n > 1 and origins.is_repository(word)), 0)
    named = words[place + 1 : place + 2]
    name = named[0] if named and not named[0].startswith("-") else words[place]
    return name.rstrip("/").rpartition("/")[2].removesuffix(".git")


def run(command: Command, reading: Reading, ref: str = "") -> None:
    """Take what one command installs. ``ref``: of a clone, what is checked out in it afterwards."""
    words = _unwrapped(command.words)
    if ref and "clone" in words:
        words = [*words, "--branch", ref]
    verb = _verb(words)
    if verb is not None:
        verb(command, words, reading)
    elif words and words[0] in SPEAKERS:
        reading.skip(command.line, command.text, "installs nothing")
    elif INSTALLING.search(command.text) or INSTALLING.search(command.document):
        reading.miss(command.line, command.text, "may install something in a way that is not read")
    elif None in words[:1]:
        reading.miss(command.line, command.text, "which command it is only a run tells")
    else:
        reading.skip(command.line, command.text, "installs nothing")


def _unwrapped(words: list[str | None]) -> list[str | None]:
    while words and (words[0] in WRAPPERS or (words[0] and re.fullmatch(r"\w+=.*", words[0]))):
        words = words[1:]
        while words and words[0] and (words[0].startswith("-") or re.fullmatch(r"\w+=.*|\d+[smh]?", words[0])):
            words = words[1:]
    return words


Verb = Callable[[Command, list[str | None], Reading], None]


def _verb(words: list[str | None]) -> Verb | None:
    """What reads this command; None: nothing that installs."""
    name = Path(words[0]).name if words and words[0] else ""
    rest = [word or "" for word in words[1:]]
    if re.fullmatch(r"python[\d.]*", name):
        return _python(rest)
    if re.fullmatch(r"pip[\d.]*", name):
        return _pip_verb(rest, 1)
    if name == "uv" and rest[:1] == ["pip"]:
        return _pip_verb(rest[1:], 2)
    if name in ("uv", "poetry", "pdm") and rest[:1] == ["add"]:
        return lambda command, words, reading: _pip(command, words[2:], reading)
    if name in ("conda", "mamba", "micromamba"):
        return _conda_verb(rest)
    if (name, *rest[:1]) in INSTALLERS:
        return lambda command, words, reading: reading.miss(
            command.line, command.text, "installs what another file says: audit that file"
        )
    if name == "git" and "clone" in rest:
        return _clone
    return _script_verb(words, name)


def _python(rest: list[str]) -> Verb | None:
    if rest[:2] == ["-m", "pip"]:
        return _pip_verb(rest[2:], 3)
    if rest[:1] and rest[0].endswith("setup.py") and {"install", "develop"} & {*rest}:
        return lambda command, words, reading: reading.miss(
            command.line, command.text, "installs a folder, and does not say which distribution it has"
        )
    return None


def _pip_verb(rest: list[str], skipped: int) -> Verb | None:
    """pip's options may stand before its verb."""
    place = next((n for n, word in enumerate(rest) if not word.startswith("-")), len(rest))
    if rest[place : place + 1] in (["install"], ["sync"]):
        return lambda command, words, reading: _pip(command, words[skipped + place + 1 :], reading)
    return lambda command, words, reading: reading.skip(command.line, command.text, "installs nothing")


def _pip(command: Command, words: list[str | None], reading: Reading) -> None:
    """Take pip's arguments, each as a line of a requirements file."""
    waiting = list(words)
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
    reading.skip(command.line, command.text, "read")


def _named(option: str, value: str | None, command: Command, reading: Reading) -> None:
    if value is None:
        reading.miss(command.line, command.text, f"which file {option} names only a run tells")
    else:
        lines.argument(f"{option} {value}", command.line, reading)


def _pep508(word: str) -> str:
    """Poetry's and PDM's NAME@VERSION as pip writes it."""
    found = re.fullmatch(r"([\w.\[\],-]+)@(\d[\w.+!]*)", word)
    return f"{found[1]}=={found[2]}" if found else word


def _conda_verb(rest: list[str]) -> Verb | None:
    if rest[:1] == ["run"] or rest[:2] == ["env", "create"] or rest[:2] == ["env", "update"]:
        return _conda_other
    return _conda if rest[:1] in (["install"], ["create"], ["update"]) else None


def _conda(command: Command, words: list[str | None], reading: Reading) -> None:
    waiting = words[2:]
    while waiting:
        word = waiting.pop(0)
        if word is None:
            reading.miss(command.line, command.text, "what it installs only a run tells")
        elif word in ("-n", "--name", "-p", "--prefix", "-c", "--channel", "--solver"):
            waiting[:1] = []
        elif word in ("-f", "--file") and waiting:
            reading.follow(command.line, command.text, waiting.pop(0) or "")
        elif not word.startswith("-"):
            conda.required(word, command.line, reading)
    reading.skip(command.line, command.text, "read")


def _conda_other(command: Command, words: list[str | None], reading: Reading) -> None:
    """``conda run -n X COMMAND``, and environments by a file."""
    plain = [word or "" for word in words]
    if plain[1] == "run":
        start = next((n for n, word in enumerate(plain[2:], 2) if word in ("pip", "python", "bash", "uv")), len(plain))
        return run(command._replace(words=words[start:]), reading)
    file = next((plain[n + 1] for n, word in enumerate(plain[:-1]) if word in ("-f", "--file")), "environment.yml")
    return reading.follow(command.line, command.text, file)


def _clone(command: Command, words: list[str | None], reading: Reading) -> None:
    """A clone of a known upstream is code of it: of the tag or branch that is asked for, if it stays there."""
    plain = [word or "" for word in words]
    url = next((word for word in plain[2:] if origins.is_repository(word)), "")
    source = origins.of_url(url, reading.repositories)
    if not url and None in words:
        return reading.miss(command.line, command.text, "what it clones only a run tells")
    if not source.name:
        return reading.skip(command.line, command.text, "a clone of no known upstream")
    ref = next((plain[-n] for n in range(1, len(plain)) if plain[-n - 1] in ("-b", "--branch")), "")  # the last counts
    why = "" if ref else "a clone, of which no commit is named here"
    return reading.require(command.line, source.name, ref=ref, repository=source.repository, why=why)


def _script_verb(words: list[str | None], name: str) -> Verb | None:
    """Other scripts, and programs that a shell reads from a text or a pipe."""
    rest = [word for word in words[1:] if not (word or "").startswith("-")]
    if name in SHELLS and "-c" in words:
        return _text
    if name in SHELLS or name in ("source", ".", "eval"):
        return _script if rest and rest[0] is not None and name != "eval" else _unknown
    return _script if name.endswith(".sh") else None


def _text(command: Command, words: list[str | None], reading: Reading) -> None:
    text = words[words.index("-c") + 1] if words.index("-c") + 1 < len(words) else None
    if text is None:
        return _unknown(command, words, reading)
    read("\n" * (command.line - 1) + text, reading)
    return None


def _script(command: Command, words: list[str | None], reading: Reading) -> None:
    name = words[0] if (words[0] or "").endswith(".sh") else next(w for w in words[1:] if not (w or "").startswith("-"))
    if (name or "").rpartition("/")[2] in ("activate", "conda.sh", ".bashrc", "bashrc", "profile", ".profile"):
        return reading.skip(command.line, command.text, "chooses an environment")
    return reading.follow(command.line, command.text, name or "")


def _unknown(command: Command, words: list[str | None], reading: Reading) -> None:
    if command.document:
        read("\n" * command.line + command.document, reading)
    elif command.fed or words[0] == "eval" or len(words) > 1:
        reading.miss(command.line, command.text, "runs a program that is not in this file")
    else:
        reading.skip(command.line, command.text, "a shell")
