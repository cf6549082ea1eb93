"""What a person is told of upstream's tests that lack a module here."""

import io

import pytest
from rich.console import Console

from reproducers.record.upstream_tests import Compare, Side, UpstreamTests
from reproducers.studies.suites import showing


@pytest.mark.parametrize("module", ["transformers", "yaml.constructor"])
def test_a_module_that_tests_lack_is_named_with_the_way_to_it(module):
    error = Side(outcome="error", error=f"ModuleNotFoundError: No module named '{module}'")
    row = Compare(test="tests/test_a.py::test_b", pristine=error, patched=error, compared="failed both")
    result = UpstreamTests.model_construct(
        pack=7,
        at="live",
        lane="cpu",
        files={"tests/test_a.py": "a"},
        outcomes=[row],
        verdict=None,
        reason="none passed",
    )
    assert showing.wanting(result) == [module.partition(".")[0]]
    out = io.StringIO()
    showing.summary([result], Console(file=out, width=300))
    assert f"pip install what has {module.partition('.')[0]}," in out.getvalue()
    well = result.model_copy(update={"outcomes": [row.model_copy(update={"pristine": Side(outcome="passed")})]})
    assert showing.wanting(well) == []
