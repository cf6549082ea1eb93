"""Markers leave a version to be judged; only where those that can hold disagree are there several choices."""

import pytest

from patchlane.listed.choices import choices, refusing
from patchlane.listed.reading import Required


def row(version, marker="", **more):
    return Required(name="toyup", version=version, marker=marker, file="r.txt", line=1, **more)


@pytest.mark.parametrize(
    ("rows", "versions"),
    [
        ([row("1", 'python_version >= "3.10"')], [{"1"}]),
        ([row("1", 'platform_system=="Linux"')], [{"1"}]),
        ([row("1", 'sys_platform == "linux"'), row("2", 'sys_platform != "linux"')], [{"1"}, {"2"}]),
        ([row("1", 'python_version < "3.10"'), row("1", 'python_version >= "3.10"')], [{"1"}, {"1"}]),
        ([row("1", 'python_version < "3.6"')], []),
        ([row("1", 'python_full_version >= "3.11.4"'), row("2")], [{"2"}, {"1", "2"}]),
        ([row("1", "extra == 'gpu'")], [{"1"}]),
        ([row("1", 'python_full_version == "3.12.7"')], [{"1"}]),
        ([row("1", 'platform_machine == "s390x"')], [{"1"}]),
        ([row("1", "'x' in dependency_groups")], [{"1"}]),
        ([row("1", "no marker at all")], [{"1"}]),
        ([row("1", constraint=True)], []),
        ([row(None), row("1", constraint=True)], [{None, "1"}]),
    ],
)
def test_the_sets_of_lines_that_hold_together(rows, versions):
    found = [{each.version for each in choice.required} for choice in choices(rows)]
    assert sorted(map(str, found)) == sorted(map(str, versions))


def test_a_line_that_does_not_allow_a_version():
    wide, narrow, odd = row(None, spec=">=1"), row(None, spec="<2"), row(None, spec="^1")
    assert refusing("1.5", (wide, narrow, odd)) is None and refusing("2.5", (wide, narrow, odd)) is narrow
