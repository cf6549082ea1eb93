"""The toy in several releases on a package index of its own, with what they require."""

import hashlib
import zipfile

from toy import FIRST, PUBLISHED, RECORD, REPRODUCER, SOURCE, TOTAL, edited, write_tree

GOOD = edited(TOTAL, FIRST)
BROKEN = {**SOURCE, "toyup/core.py": "def total(:\n"}
HANGS = {**SOURCE, "toyup/core.py": "import time\n\ntime.sleep(3600)\n"}
WITHOUT = {"toyup/__init__.py": ""}
RELEASES = {  # oldest first
    "0.8": WITHOUT,
    "0.9": GOOD,
    "1.0": SOURCE,
    "1.1": BROKEN,
    "1.2": SOURCE,
    "1.3": HANGS,
    "1.4": GOOD,
    "1.10": GOOD,
    "2.0rc1": SOURCE,
}
ANSWERS = {
    "0.8": "code not there",
    "0.9": "healthy",
    "1.0": "bug",
    "1.1": "cannot test",
    "1.2": "bug",
    "1.3": "cannot test",
    "1.4": "healthy",
    "1.10": "healthy",
}


def wheel(folder, name, release, files, requires=(), tag="py3-none-any"):
    """A wheel in ``folder``, the same bytes every time."""
    info = f"{name}-{release}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n"
    metadata += "".join(f"Requires-Dist: {text}\n" for text in requires)
    made = {f"{info}/METADATA": metadata, f"{info}/RECORD": ""}
    made[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{release}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as sink:
        for inner, text in {**files, **made}.items():
            sink.writestr(zipfile.ZipInfo(inner), text)
    return path


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def page(folder, name):
    """The index's page of a distribution, of the wheels that are in ``folder``."""
    rows = [f'<a href="/{p.name}#sha256={sha256(p)}">{p.name}</a>' for p in sorted(folder.glob(f"{name}-*.whl"))]
    write_tree(folder, {f"simple/{name}/index.html": f"<!DOCTYPE html><html><body>{''.join(rows)}</body></html>"})


def pack(toy, needs="", listed="", sets=None, **more):
    """The toy's pack whose live pin is release 1.0 as the index has it, beside other releases and sets of needs."""
    live = wheel(toy.root / "index", "toyup", "1.0", RELEASES["1.0"])
    toy.publishes(PUBLISHED.replace("b" * 64, sha256(live)) + listed, sets)
    record = RECORD.replace('"1.0"\n', '"1.0"\n' + (f"    needs: [{needs}]\n" if needs else ""))
    return toy.pack(record=record.replace("timeout_s: 30", "timeout_s: 4"), **{"reproducer": REPRODUCER, **more})
