"""Pack everything that chosen packs need on an offline host, in parts of a given size.

    python -m reproducers.bundle pack05 pack09 --target cp312-linux-x86_64 --split 60M --output build/bundle
    python -m reproducers.bundle install build/bundle/*.part*      (there; needs nothing but Python)

A bundle holds unpacked store trees (each file once, by digest) and the engine's own requirements for that Python.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

if sys.argv[1:2] != ["install"]:  # install runs on a host with nothing but Python
    import typer

from reproducers.upstream.bundle.parts import collect, engine_requirements, part_size, target_tags, write


def main() -> None:
    """The command line. It hands ``install`` to a module that needs only the standard library."""
    if sys.argv[1:2] == ["install"]:
        from reproducers.upstream.bundle.install import main as install

        raise SystemExit(install(sys.argv[2:]))
    from reproducers.base.cli import guarded

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(create)
    guarded(app)


def create(
    packs: Annotated[list[str], typer.Argument(help="packs to bundle, as pack05")],
    target: Annotated[str, typer.Option(help="Python and platform of the offline host")] = "cp312-linux-x86_64",
    split: Annotated[str, typer.Option(help="largest part: bytes, or a number with K, M or G")] = "60M",
    pins: Annotated[
        str, typer.Option(help="which trees: names of pins, separated by commas; live brings a guard's fixed too")
    ] = "live",
    tests: Annotated[
        bool, typer.Option(help="bring upstream's own tests too, for python -m reproducers.upstream_tests")
    ] = False,
    output: Annotated[Path, typer.Option(help="folder of the parts")] = Path("build/bundle"),
) -> None:
    """Write everything that the packs need on an offline host, in parts.

    On that host run: python -m reproducers.bundle install PART..., which needs nothing but Python.
    """
    from patchlane.base import disk
    from patchlane.base.files import file_sha256
    from reproducers.record.schema import load_named
    from reproducers.studies.suites.suite import bundled
    from reproducers.trial import screen
    from reproducers.upstream.store import Store

    disk.usable_folder(output, "--output DIR names another folder")
    out = screen.console(False)
    store, size = Store(progress=screen.Announcer(out)), part_size(split)
    trees = collect(store, packs, pins.split(","), target)
    trees |= bundled(store, load_named(packs), pins.split(","), target_tags(target)) if tests else {}
    engine = engine_requirements(store, target)
    stem = output / f"patchlane-{target}"
    _remove_parts(stem)
    try:
        with disk.writing(output, "make room, or --output DIR"), out.status(f"compressing {len(trees)} trees"):
            parts = write(trees, engine, stem, size, target)
    except BaseException:
        _remove_parts(stem)
        raise
    digests = [file_sha256(part) for part in parts]
    for part, digest in zip(parts, digests, strict=True):
        out.print(f"{part} {part.stat().st_size / 1e6:.1f} MB sha256 {digest}", markup=False)
    out.print(f"on the offline host: python -m reproducers.bundle install {stem.name}.part*", markup=False)
    out.print(f"which compares them first, given --sha256 {','.join(digests)}", markup=False)


def _remove_parts(stem: Path) -> None:
    for part in stem.parent.glob(f"{stem.name}.part*"):
        part.unlink()


if __name__ == "__main__":
    main()
