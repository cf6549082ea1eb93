"""Nothing in the project can post: no filing verb loads a network client, and only the package index has one."""

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys

import pytest
from pages import help_of
from ready import DAY

from reproducers.record.schema import ROOT, load_pack

CLIENTS = {
    "requests",
    "httpx",
    "aiohttp",
    "urllib3",
    "http.client",
    "urllib.request",
    "ftplib",
    "smtplib",
    "imaplib",
    "poplib",
    "telnetlib",
    "xmlrpc.client",
    "selenium",
    "playwright",
    "github",
    "gitlab",
    "pypi_simple",
    "truststore",
    "websockets",
    "paramiko",
    "pycurl",
    "boto3",
}
SOURCES = [path for name in ("patchlane", "reproducers") for path in (ROOT / name).rglob("*.py")]
VERBS = [
    name
    for name in ("render", "export", "lint", "preflight", "approve", "waves", "site", "series")
    if importlib.util.find_spec(f"reproducers.{name}")
]
ARGUMENTS = {
    "render": ["pack07", "--as", "comment", "--out", "build/out"],
    "export": ["pack07", "-o", "build/pack07.py"],
    "lint": ["pack07"],
    "preflight": ["pack07", "--as", "comment"],
    "approve": ["pack07", "--as", "comment"],
    "waves": ["--all", "--date", str(DAY)],
    "site": ["--out", "build/site"],
    "series": ["pack07", "--out", "build/series"],
}
EXERCISE = """
import datetime, importlib, json, socket, sys

def refuse(*args, **options):
    raise AssertionError("a verb spoke to the network")

for name in ("connect", "connect_ex", "sendto", "sendmsg"):
    setattr(socket.socket, name, refuse)
socket.create_connection = socket.getaddrinfo = socket.gethostbyname = refuse

from typer.testing import CliRunner
name, arguments, day = sys.argv[1], json.loads(sys.argv[2]), datetime.date.fromisoformat(sys.argv[3])
verb = importlib.import_module(f"reproducers.{name}")
for module in (verb, importlib.import_module("reproducers.evidence.verification")):
    if hasattr(module, "today"):
        module.today = lambda: day
typed = None
if name == "approve":
    from reproducers.desk.text import dossier
    from reproducers.record.schema import ROOT, load_packs
    verb.at_terminal = lambda command: None
    typed = "Jane Doe\\n" + dossier.digest(dossier.files(load_packs()[0], ROOT / "receipts", "comment")) + "\\n"
done = CliRunner().invoke(verb.app, arguments, input=typed)
print(json.dumps([done.exit_code, repr(done.exception), done.output, sorted(sys.modules)]))
"""


@pytest.fixture
def project(desk):
    """A copy of the engine whose only pack is the toy."""
    root = desk.repository(load_pack(desk.folder))
    shutil.copytree(ROOT / "templates", root / "templates")
    shutil.copytree(desk.root / "receipts", root / "receipts")
    return root


def exercised(project, name):
    """[exit code, exception, output, modules loaded] of one verb on the toy pack."""
    command = [sys.executable, "-c", EXERCISE, name, json.dumps(ARGUMENTS[name]), str(DAY)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", VERBS)
def test_a_filing_verb_loads_no_network_client(project, name):
    code, exception, output, modules = exercised(project, name)
    assert code == (1 if name == "preflight" else 0), (exception, output)  # nobody has approved it
    assert CLIENTS & set(modules) == set()


def test_the_exercise_sees_a_client(project):
    (project / "reproducers" / "render.py").open("a").write("\nimport http.client\n")
    assert CLIENTS & set(exercised(project, "render")[3]) == {"http.client"}


def test_the_exercise_stops_a_socket(project):
    (project / "reproducers" / "desk" / "text" / "dossier.py").open("a").write(
        "\nimport socket\nfiles = lambda *a: socket.create_connection(('127.0.0.1', 9))\n"
    )
    assert "spoke to the network" in exercised(project, "render")[1]


def imported(path):
    """Dotted names that a source imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_only_the_package_index_has_a_client():
    found = dict[str, set[str]]()
    for path in SOURCES:
        found.setdefault(path.name, set()).update(imported(path) & (CLIENTS | {"socket"}))
    assert {name: clients for name, clients in found.items() if clients} == {
        "index.py": {"requests", "pypi_simple", "truststore"},
        "data.py": {"http.client", "urllib.request"},  # the address that `audit --data` is given
        "megatron.py": {"socket"},  # a free port for the ranks of one host
        "child.py": {"socket"},  # the same, for upstream's own tests
        "offline.py": {"socket"},  # refuses those tests every host but this one
    }


def test_no_program_is_called_that_could_post():
    tools = {"push", "send-email", "request-pull", "gh", "hub", "glab", "curl", "wget", "sendmail"}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.List | ast.Tuple | ast.Call):
                parts = node.args if isinstance(node, ast.Call) else node.elts
                words = {part.value for part in parts if isinstance(part, ast.Constant)}
                assert not tools & words, f"{path.name}:{node.lineno}"


@pytest.mark.parametrize("name", VERBS)
def test_no_verb_offers_to_post(name):
    said = help_of(f"reproducers.{name}")
    assert not re.search(r"--(?:post|submit|send|push|publish|upload|token|login|url)\b", said)
