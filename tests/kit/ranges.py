"""A package index that counts the bytes that it sends, and serves parts of files, or only whole ones."""

import contextlib
import http.server
import re
import threading
from functools import partial


class Sent:
    """``whole`` and ``parts``: how often a file was sent so; ``bytes``: of all answers."""

    def __init__(self):
        self.whole = self.parts = self.bytes = 0


@contextlib.contextmanager
def serving(folder, ranges=True, spoil=lambda data: data):
    """(address of the index in ``folder``, what it sent); ``spoil`` changes the bytes of each part."""
    sent = Sent()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *said):
            return None

        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            self.answer(body=True)

        def answer(self, body):
            path = folder / self.path.lstrip("/").partition("?")[0]
            path = path / "index.html" if path.is_dir() else path
            if not path.is_file():
                self.send_error(404)
                return
            data, asked = path.read_bytes(), re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            if asked and ranges:
                first, last = asked.groups()
                start = int(first) if first else max(0, len(data) - int(last))
                stop = min(int(last) + 1 if first and last else len(data), len(data))
                part = spoil(data[start:stop])
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
                sent.parts += 1
            else:
                part = data
                self.send_response(200)
                sent.whole += body and path.suffix == ".whl"
            self.send_header("Content-Type", "text/html" if path.suffix == ".html" else "application/octet-stream")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            if body:
                sent.bytes += len(part)
                with contextlib.suppress(OSError):
                    self.wfile.write(part)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple/", sent
        finally:
            server.shutdown()
