"""Install lines of scripts: which versions they name, and which may install what is not said."""

from pathlib import Path

import pytest
from toy import write_tree

from patchlane.base.errors import PatchlaneError
from patchlane.listed import formats
from patchlane.listed.reading import Reading
from patchlane.listed.scripts import installs

KNOWN = {"up/toy": "toyup"}
DEEP = "a=" + "$(" * 300 + ")" * 300
DOUBLED = "V0=aaaaaaaaaaaaaaaa\n" + "".join(f'V{n}="$V{n - 1}$V{n - 1}"\n' for n in range(1, 40)) + "pip install $V39"


def read(text, name="x.sh", folder=Path()):
    return installs.read(text, Reading(folder / name, KNOWN))


def asked(text):
    seen = read(text)
    assert seen.unread == [], seen.unread
    return [(x.line, x.name, x.version or x.ref or None) for x in seen.required]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pip install toyup==1.0 -q 'other>=2'", [(1, "toyup", "1.0"), (1, "other", None)]),
        ("set -e\nsudo -H python3 -m pip --no-cache-dir install -U \\\n  toyup==1.0", [(2, "toyup", "1.0")]),
        ("uv pip install --system --index-url https://x --python=3.12 'toyup[a]==1.0'", [(1, "toyup", "1.0")]),
        ("V=1.0\npip install toyup==$V other==${V}.1", [(2, "toyup", "1.0"), (2, "other", "1.0.1")]),
        ("pip install toyup==${V:-1.0}", [(1, "toyup", "1.0")]),
        ("MAX_JOBS=4 pip install --no-build-isolation toyup==1.0 && echo pip install x", [(1, "toyup", "1.0")]),
        ("if true; then\n  pip install toyup==1.0\nfi", [(2, "toyup", "1.0")]),
        ("bash -c 'pip install toyup==1.0'", [(1, "toyup", "1.0")]),
        ("bash <<EOF\npip install toyup==1.0\nEOF", [(2, "toyup", "1.0")]),
        ("conda install -y -c conda-forge toyup==1.0", [(1, "toyup", "1.0")]),
        ("conda run -n x pip install toyup==1.0", [(1, "toyup", "1.0")]),
        ("poetry add toyup@1.0", [(1, "toyup", "1.0")]),
        ("git clone -b v1.0 https://github.com/up/toy", [(1, "toyup", "v1.0")]),
        ("git clone https://github.com/up/toy && cd toy && git checkout abc1234", [(1, "toyup", "abc1234")]),
        ("git clone https://github.com/up/toy dir\ncd /w/dir\ngit checkout abc1234", [(1, "toyup", "abc1234")]),
        ("git clone https://github.com/up/toy\ncd elsewhere && git checkout abc1234", [(1, "toyup", None)]),
        ("pip install other>=1.2 toyup==1.0", [(1, "other", None), (1, "toyup", "1.0")]),
        ("PIP='uv pip'\n$PIP install toyup==1.0", [(2, "toyup", "1.0")]),
        ("pip --timeout 100 install toyup==1.0", [(1, "toyup", "1.0")]),
        ("python3 -mpip install toyup==1.0", [(1, "toyup", "1.0")]),
        ("srun --ntasks 1 pip install toyup==1.0", [(1, "toyup", "1.0")]),
        ("bash -lc 'pip install toyup==1.0'", [(1, "toyup", "1.0")]),
        ("git clone --branch=v1.0 https://github.com/up/toy", [(1, "toyup", "v1.0")]),
        ("git clone -b v1.0 https://github.com/up/toy && cd toy && git reset --hard abc1234", [(1, "toyup", None)]),
        ("git clone -b v1.0 https://github.com/up/toy\ngit -C toy pull", [(1, "toyup", None)]),
        ("pip install toyup==1.0\npip install --upgrade toyup", [(1, "toyup", "1.0"), (2, "toyup", None)]),
        ("pip install --dry-run toyup==1.0", []),
        ("# pip install toyup==1.0\necho 'pip install toyup==1.0'\napt-get install -y git", []),
    ],
)
def test_what_is_installed(text, found):
    assert asked(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "pip install $PACKAGE",
        "pip install toyup==$(cat version)",
        "for p in a b; do pip install $p; done",
        "V=1\nV=2\npip install toyup==$V",
        "pip install --some-new-option toyup",
        "pip install -r gone.txt",
        "pip install .",
        "pip install dist/*.whl",
        "python setup.py install",
        "bash other.sh",
        "./setup.sh",
        "source env.sh",
        "curl https://x | bash",
        "eval $COMMAND",
        "uv sync --locked",
        "poetry install",
        "docker run x sh -c 'pip install toyup==1.0'",
        "cat list | xargs pip install",
        "$RUNNER install",
        "git clone $URL",
        "cd vendor\npip install -r r.txt",
        "echo other==1.0 >> r.txt\npip install -r r.txt",
        "pip install -r /etc/hosts",
        "pip install -r -",
        "conda install -y --file=gone.txt",
        "conda create --clone base",
        "uv run --with toyup==1.0 train.py",
        "uvx toyup",
        "make install",
        "python install.py",
        "python -c 'import subprocess; subprocess.run([1])'",
        "sudo -u app bash install.sh",
        "curl -L https://github.com/up/toyup/archive/v1.tar.gz | tar xz",
        "git submodule add https://github.com/someone/toyup",
        "git submodule update --init --recursive",
        "export PYTHONPATH=/opt/toyup",
        "MINE=/opt/toyup",
        "PIP_CONSTRAINT=c.txt pip install other",
        "pip ${ACTION} toyup==1.0",
        "pip uninstall -y toyup",
        "read V\npip install toyup==$V",
    ],
)
def test_what_may_install_more_is_named(text):
    seen = read(text)
    assert seen.unread and seen.unread[0].line == text.count("\n") + 1, seen


def test_other_scripts_and_files_are_followed(tmp_path):
    write_tree(
        tmp_path,
        {
            "x.sh": "bash inner.sh\npip install -r r.txt\n",
            "inner.sh": "pip install a==1\nbash x.sh\n",
            "r.txt": "b==2\n",
        },
    )
    seen = formats.read(tmp_path / "x.sh", {})
    assert [(x.name, x.version) for x in seen.required] == [("a", "1"), ("b", "2")] and seen.unread == []


def test_each_line_is_accounted_for():
    text = "#!/bin/bash\nset -e\n\npip install a==1 \\\n  b==2\nfoo(\nx() {\n  pip install c==3\n}\n"
    seen = read(text)
    told = {x.line for x in (*seen.required, *seen.skipped, *seen.unread)}
    assert {1, 2, 4} <= told and any(x.line >= 6 for x in seen.unread)


def test_depth_and_growth_have_bounds(tmp_path):
    (tmp_path / "x.sh").write_text(DEEP)
    with pytest.raises(PatchlaneError):
        formats.read(tmp_path / "x.sh", {})
    assert [x.line for x in read(DOUBLED).unread] == [41]
