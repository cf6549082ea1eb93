"""An arm's end of the channel to its runner: every message has its number and a code that only these two can make.

The runner gives two descriptors: one to read the run's secret from, once and before upstream is imported, and one to
write to. Standard library only.
"""

from __future__ import annotations

import hmac
import json
import os
from typing import Any

SECRET_BYTES = 32


class Channel:
    def __init__(self, secret: int, out: int) -> None:
        with os.fdopen(secret, "rb") as source:
            self._code = hmac.new(source.read(SECRET_BYTES), digestmod="sha256")
        os.set_inheritable(out, False)  # no program that the arm starts can write here
        self._out, self._sent = out, 0

    def send(self, kind: str, body: Any) -> None:
        """Write one message: a line of its code and ``[number, kind, body]``."""
        text = json.dumps([self._sent, kind, body], sort_keys=True).encode()
        code = self._code.copy()
        code.update(text)
        line = code.hexdigest().encode() + b" " + text + b"\n"
        while line:
            line = line[os.write(self._out, line) :]
        self._sent += 1

    def leave(self) -> None:
        """Close it in a forked rank, whose observations go through its parent."""
        os.close(self._out)
