"""``python -m model.train`` whose checkpoints take long: SECONDS to be copied, and as many to be written.

torchrun … tests/kit/slow_save.py SECONDS ARGUMENTS
"""

import sys
import time
from typing import Any

from model import train
from model.loop import session
from reproducers.base.cli import guarded

seconds = float(sys.argv.pop(1))
modules = session._modules


def slowed(*given: Any) -> Any:
    """Megatron is on the import path only now."""
    found = modules(*given)
    from model.loop.saving import writing

    staged, written = writing.staged, writing.written
    writing.staged = lambda *of: time.sleep(seconds) or staged(*of)  # type: ignore[func-returns-value]
    writing.written = lambda *of: time.sleep(seconds) or written(*of)  # type: ignore[func-returns-value]
    return found


session._modules = slowed
guarded(train.app)
