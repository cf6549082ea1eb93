"""A pytest plugin: with ``-p`` and its name, ``--upstream-guards`` adds an item for each pack with code installed.

An item fails where the bug is unpatched, passes where it is patched or fixed, and is skipped, with the command that
decides, where nobody has measured the code. ``--deselect upstream-guards::pack09`` leaves one out. Without the option
the plugin imports nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from patchlane.judged.answers import Answer

OPTION = "--upstream-guards"


def pytest_addoption(parser: pytest.Parser) -> None:
    said = "fail where an installed training package has a bug that patchlane has a pack for"
    parser.getgroup("patchlane").addoption(OPTION, action="store_true", help=said)


@pytest.hookimpl(tryfirst=True)  # before -k and --deselect choose
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption(OPTION):
        items += Guards.from_parent(session, name="upstream-guards", nodeid="upstream-guards").collect()


class Guards(pytest.Collector):
    """All packs in this interpreter's environment."""

    def collect(self) -> list[pytest.Item]:
        return list(self._items())

    def _items(self) -> Iterator[pytest.Item]:
        from patchlane.base.errors import PatchlaneError
        from patchlane.judged.advice import advised
        from patchlane.judged.judgement import audit
        from patchlane.known import data
        from patchlane.present.environment import of_this_process

        try:
            known = data.known()
        except PatchlaneError as error:
            raise pytest.UsageError(f"{OPTION}: {error}") from error
        environment = of_this_process(known)
        for answer in advised(audit(known, environment), known, environment)[0]:
            if answer.version or answer.state != "absent":
                yield Guard.from_parent(self, name=answer.pack, answer=answer)


class Guard(pytest.Item):
    """One pack."""

    def __init__(self, *, answer: Answer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.answer = answer

    def runtest(self) -> None:
        if self.answer.state == "buggy":
            raise Unpatched(self.answer)
        if self.answer.state in ("unknown", "absent"):
            pytest.skip(f"{self.answer.state}: {self.answer.reason}; fix: {self.answer.remedy}".removesuffix("; fix: "))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, Unpatched):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, int | None, str]:
        return "upstream-guards", None, f"{self.answer.pack}: {self.answer.distribution}"


class Unpatched(Exception):
    """The environment has the bug of the pack."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(
            f"{answer.pack}: {answer.distribution} {answer.version or ''}: {answer.cost}\n"
            f"  {answer.reason}\n  fix: {answer.mend}"
        )
