"""Programs of scripts by what they install: their options and verbs, and those that bring no Python package."""

from __future__ import annotations

import re

SHELLS = ("bash", "sh", "zsh", "dash")
STARTS = re.compile(r"(pip[\d.]*|uv|uvx|conda|mamba|micromamba|poetry|pdm|bash|sh|zsh|dash|python[\d.]*)|.*\.sh")
INSTALLING = re.compile(
    r"\b(pip[\d.]*|uv|uvx|conda|mamba|micromamba|poetry|pdm|pipenv|pixi|rye|hatch|flit|easy_install|setup\.py)\b",
)
HARMLESS = """
. : [ [[ add-apt-repository addgroup adduser alias apk apt apt-cache apt-get aptitude awk basename break cat cd chgrp
chmod chown clear cmp continue cp curl cut date declare df diff dirname dnf dpkg du echo egrep env exit expand export
expr false fgrep find free g++ gcc getopts git grep groupadd groups gunzip gzip head hostname id jq kill ldconfig less
let ln local locale-gen log ls lsb_release lscpu make-ssl-cert md5sum mkdir mkfifo mktemp more mount mv nproc nvcc
nvidia-smi popd printf ps pushd pwd read readlink readonly realpath return rm rmdir sed select seq service set
sha256sum shift shopt sleep sort source stat stty su systemctl tail tar tee test timedatectl tr trap true type typeset
ulimit umask umount uname uniq unset unzip update-alternatives useradd usermod wait wc wget which whoami xz yes yum
zip
"""  # commands that bring no Python package but one that they name
QUIET = {  # verbs of tools that install nothing
    "uv": [
        "venv",
        "python",
        "cache",
        "self",
        "init",
        "lock",
        "build",
        "version",
        "help",
        "--version",
        "-V",
        "tree",
        "export",
    ],
    "conda": ["activate", "deactivate", "init", "config", "clean", "info", "list", "--version", "shell.bash", "search"],
    "poetry": ["config", "lock", "env", "check", "show", "version", "--version", "self", "export"],
    "pdm": ["config", "lock", "info", "list", "--version", "export"],
}
CHANGING = ("reset", "pull", "checkout", "switch", "apply", "am", "cherry-pick", "merge", "rebase", "restore")
OWN = re.compile(r"dirname|BASH_SOURCE|\$0")  # cd to where the script lies
SETTINGS = re.compile(r"\b(PIP|UV)_(REQUIREMENT|CONSTRAINT|BUILD_CONSTRAINT|OVERRIDE)S?=")
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


QUOTING = (
    "apt-get",
    "apt",
    "dnf",
    "yum",
    "apk",
    "grep",
    "which",
    "type",
    "rm",
    "mkdir",
    "export",
    "test",
    "[",
    "cd",
    "find",
)
SPECIAL = ("git", "source", ".", "eval", "easy_install", "pipenv", "pixi")
CARRYING = "cp mv ln rsync tar curl wget unzip export tee cat sed echo printf install"  # what may bring what it names
APART = ("docker", "podman", "nerdctl", "ssh", "kubectl", "xargs", "singularity", "apptainer", "enroot")  # other places
WRAPPING = ("env", "su", "find")
PIP_QUIET = "list freeze show check config cache debug download wheel hash index search help inspect compile tree"
CONDA_VALUED = ("-n", "--name", "-p", "--prefix", "-c", "--channel", "--solver", "--repodata-fn", "--platform")
CONDA_FLAGS = """
-y --yes -q --quiet --override-channels --no-deps --strict-channel-priority --freeze-installed --no-pin -S --copy
--download-only -v --update-deps --only-deps --experimental-solver
"""
