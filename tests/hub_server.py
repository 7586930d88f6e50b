"""A test server with the routes of the Hugging Face hub that a download uses, and the cache of huggingface_hub."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SHA = "0123456789abcdef0123456789abcdef01234567"


def git_hash(content: bytes) -> str:
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_large(file: str) -> bool:
    """Whether a file is stored in Git LFS, by its SHA-256."""
    return not file.endswith((".json", ".md"))


def large(file: str, content: bytes) -> dict[str, Any]:
    lfs = {"sha256": sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return {"lfs": lfs} if is_large(file) else {}


class Hub(ThreadingHTTPServer):
    """A test server with the routes of the hub that a download uses."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.failures: dict[str, int] = {}  # repository -> HTTP status of its answers
        self.silent: set[str] = set()  # repositories that do not answer; "HEAD repository": only to HEAD
        self.sent: dict[str, bytes] = {}  # repository/file -> other content that is sent instead
        self.stalls: dict[str, int] = {}  # repository/file -> number of bytes after which sending stops
        self.trickles: set[str] = set()  # repository/file: sent byte by byte, which would take hours
        self.pauses: dict[str, float] = {}  # repository -> seconds between the pieces of a file
        self.ended = threading.Event()
        self.asked: list[str] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore closed connections."""


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/").removeprefix("api/models/")
        owner, name, route, *rest = [*path.split("/"), "", ""]
        name = f"{owner}/{name}"
        self.server.asked.append(self.path)
        if self.server.silent & {name, f"{self.command} {name}"}:
            self.server.ended.wait()
            return None
        files = self.server.repositories.get(name)
        revision, file = rest[0], "/".join(part for part in rest[1:] if part)
        if status := self.server.failures.get(name, 0 if files is not None else 404):
            code = {404: "RepoNotFound", 403: "GatedRepo"}.get(status, "")
            return self.answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": "no"})
        assert files is not None
        if revision not in ("main", SHA):
            return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if route == "resolve":
            tag = sha256(files[file]).hexdigest() if is_large(file) else git_hash(files[file])
            body = self.server.sent.get(f"{name}/{file}", files[file])
            return self.answer(200, body, {"ETag": f'"{tag}"', "X-Repo-Commit": SHA}, f"{name}/{file}")
        if route == "tree":
            tree = [{"type": "file", "path": f, "size": len(c), "oid": git_hash(c)} for f, c in files.items()]
            return self.answer(200, json.dumps(tree).encode())
        siblings = [{"rfilename": f, "size": len(c), "blobId": git_hash(c)} | large(f, c) for f, c in files.items()]
        return self.answer(200, json.dumps({"id": name, "sha": SHA, "siblings": siblings}).encode())

    do_HEAD = do_GET  # noqa: N815

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None, file: str = "") -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "GET":
            return
        if file in self.server.stalls:
            self.wfile.write(body[: self.server.stalls[file]])
            self.server.ended.wait()
            return
        pause = self.server.pauses.get(file.rpartition("/")[0], 0.0)
        step = len(body) // 4 + 1 if pause else len(body) or 1
        if file in self.server.trickles:
            pause, step = 0.2, 1
        for start in range(0, len(body), step):
            self.wfile.write(body[start : start + step])
            self.wfile.flush()
            if self.server.ended.wait(pause):
                return


@contextmanager
def running_hub() -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.ended.set()
        server.shutdown()


def cached(cache: Path, name: str, sha: str = SHA, ref: str = "main") -> Path:
    """Create the folder of a snapshot in the cache."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / sha
    snapshot.mkdir(parents=True)
    (repository / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
    (repository / "refs" / ref).write_text(sha)
    return snapshot
