"""Stands for Hugging Face's hub: the requests that huggingface_hub 0.36 and 1.33 make to list and to fetch a model's files.

`GET /api/models/ID[/revision/REV]`, of the second also `GET /api/models/ID/tree/REV`, `HEAD` and `GET` (with Range)
of `/ID/resolve/REV/FILE`. It serves files of a folder; the
library on the other side is the real one. What it cannot show is the hub's own behaviour: redirects to its storage, xet,
tokens, rate limits.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves `models`: a folder for each model's id."""

    daemon_threads = True

    def __init__(self, models: dict[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = models
        self.claimed: dict[str, int] = {}  # sizes that are told of files, instead of theirs
        self.stall_after: int | None = None  # bytes of a large file after which nothing more is sent
        self.stalled = threading.Event()
        self.asked: list[tuple[str, str, str]] = []  # method, path, Range

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def fetched(self) -> list[str]:
        """The names of files that were asked for with GET."""
        return [path.rsplit("/", 1)[1] for method, path, _ in self.asked if method == "GET" and "/resolve/" in path]


@contextmanager
def hub(models: dict[str, Path]) -> Iterator[Hub]:
    server = Hub(models)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append((self.command, path, self.headers.get("Range", "")))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/revision/.*)?", path):
            self._describe(found[1])
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+", path):
            self._say([{"type": "file", "path": n, "size": s, "oid": "b"} for n, s in self._sizes(found[1]).items()])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._send_file(found[1], found[2])
        else:
            self.send_error(404)

    def _describe(self, model: str) -> None:
        folder = self.server.models.get(model)
        if folder is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        files = [{"rfilename": name, "size": size, "blobId": "b"} for name, size in self._sizes(model).items()]
        self._say({"id": model, "modelId": model, "sha": COMMIT, "private": False, "siblings": files})

    def _sizes(self, model: str) -> dict[str, int]:
        folder = self.server.models[model]
        names = sorted(path.name for path in folder.iterdir())
        return {name: self.server.claimed.get(name, (folder / name).stat().st_size) for name in names}

    def _say(self, data: Any) -> None:
        body = json.dumps(data).encode()
        self._headers(200, len(body), {"Content-Type": "application/json"})
        self.wfile.write(body)

    def _send_file(self, model: str, name: str) -> None:
        path = self.server.models[model] / name
        content = path.read_bytes()
        tag = hashlib.sha256(content).hexdigest()
        begin = int(found[1]) if (found := re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))) else 0
        part = content[begin:]
        extra = {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if begin:
            extra["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        self._headers(206 if begin else 200, len(part), extra)
        if self.command == "GET":
            self._send(part)

    def _send(self, part: bytes) -> None:
        limit = self.server.stall_after
        if limit is None or len(part) <= limit:
            self.wfile.write(part)
            return
        self.wfile.write(part[:limit])
        self.wfile.flush()
        self.server.stalled.set()
        self.rfile.read(1)  # until whoever asked is gone

    def _headers(self, status: int, length: int, extra: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for key, value in extra.items():
            self.send_header(key, value)
        self.end_headers()
