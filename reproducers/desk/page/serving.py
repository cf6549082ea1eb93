"""Answers queries for a package's version from OSV records, as https://api.osv.dev/v1/query does."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from patchlane.base.errors import PatchlaneError
from reproducers.desk.page.osv import ECOSYSTEM, Record

PATH = "/v1/query"
LONGEST = 1 << 16  # bytes of a query


def matching(records: list[Record], query: Any) -> list[Record]:
    """The records whose ``versions`` name the query's. Raises ValueError for a query of no package and version."""
    try:
        package, version = query["package"], query["version"]
        wanted = (package["ecosystem"], canonicalize_name(package["name"]))
        Version(version)
    except (TypeError, KeyError, AttributeError, InvalidVersion) as error:
        raise ValueError("the query names no package and version") from error
    return [
        record
        for record in records
        for one in record["affected"]
        if wanted == (ECOSYSTEM, canonicalize_name(one["package"]["name"])) and version in one["versions"]
    ]


def server(records: list[Record], port: int) -> ThreadingHTTPServer:
    """A server on 127.0.0.1 that answers from the records; port 0 takes a free one.

    Raises PatchlaneError where the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                length = int(self.headers.get("Content-Length") or 0)
                if self.path != PATH or length > LONGEST:
                    raise ValueError(f"only {PATH} is answered")
                found = matching(records, json.loads(self.rfile.read(length)))
                code, text = 200, json.dumps({"vulns": found} if found else {})
            except ValueError as error:
                code, text = 400, json.dumps({"code": 3, "message": str(error)})
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a query names what somebody has installed."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise PatchlaneError(f"port {port}: {error.strerror}", "--serve another port") from error


def answer(made: Callable[[], list[Record]], port: int, say: Callable[[str], None]) -> None:
    """Make the records, and answer until the process is interrupted; queries before that wait.

    Raises PatchlaneError, before any record is made, where the port is taken.
    """
    records = list[Record]()
    with server(records, port) as started, contextlib.suppress(KeyboardInterrupt):
        records += made()
        say(f"{len(records)} records at http://127.0.0.1:{started.server_port}{PATH}")
        started.serve_forever()
