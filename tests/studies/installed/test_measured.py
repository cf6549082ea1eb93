"""What digests leave open is measured on a copy of what is installed."""

import pytest
from toy import SOURCE, edited, write_tree
from toy_environment import FIXED, installed, known, tree

from patchlane.judged.judgement import audit
from patchlane.present.environment import of_python
from reproducers.studies.installed.measured import copied, measured

OTHER = known(tree("5.0", "buggy", edited(("values[1:]:", "values[5:]:"))))  # of which nothing here is
BROKEN = {**SOURCE, "toyup/core.py": SOURCE["toyup/core.py"].replace("total", "sum_of")}


@pytest.mark.parametrize(("files", "state"), [(SOURCE, "buggy"), (FIXED, "fixed"), (BROKEN, "unknown")])
def test_the_reproducer_decides_or_nothing_does(toy, tmp_path, files, state):
    pack, site = toy.pack(), installed(tmp_path / "site", files)
    before = sorted(path for path in site.rglob("*"))
    seen = of_python(site, OTHER)
    (open_answer,) = audit(OTHER, seen)
    assert open_answer.state == "unknown" and open_answer.measurable
    found = measured(pack, open_answer, seen, toy.store)
    assert (found.state, found.by) == (state, "run" if state != "unknown" else "")
    assert not found.measurable and (found.remedy == "") == (state == "fixed")
    assert sorted(path for path in site.rglob("*")) == before


def test_the_copy_is_what_an_import_would_take(tmp_path):
    one = write_tree(tmp_path / "one", {"toyup/a.py": "one", "toyup.libs/x.so": "", "toyup/__pycache__/a.pyc": ""})
    two = write_tree(tmp_path / "two", {"toyup/a.py": "two", "toyup/b.py": "two", "other/c.py": ""})
    target = tmp_path / "copy"
    copied([one / "toyup", two / "toyup"], target)
    names = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}
    assert names == {"toyup/a.py": "one", "toyup/b.py": "two", "toyup.libs/x.so": ""}
