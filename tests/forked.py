"""Start `python -m vitreous` as a real process, forked from one that has imported torch: 2.5 s of CPU time less each.
The process has its own working directory, environment, streams, session and default signal handlers."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

IMPORTED = ("vitreous.cli.train", "vitreous.training.train", "vitreous.training.resume_checks", "torch._dynamo.config")
STDOUT, STDERR = 1, 2
_server: "ForkServer | None" = None


class ForkedProcess:
    """The part of `subprocess.Popen` that the tests use. stdout and stderr are pipes."""

    def __init__(self, arguments: Sequence[str], connection: socket.socket, outputs: Sequence[IO[str]]):
        self.args, self._connection = list(arguments), connection
        self.stdout, self.stderr = outputs
        self.returncode: int | None = None
        self.pid = int.from_bytes(_receive(connection, 4), "big")

    def poll(self) -> int | None:
        return self._read_code(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both streams to their end: until this process, and those that inherited the streams, have ended."""
        texts = ["", ""]

        def read(number: int, stream: IO[str]) -> None:
            with stream:
                texts[number] = stream.read()

        readers = [
            threading.Thread(target=read, args=(number, stream), daemon=True)
            for number, stream in enumerate((self.stdout, self.stderr))
            if not stream.closed
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(timeout)
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> "ForkedProcess":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr):
            stream.close()
        self.wait()

    def _read_code(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            with suppress(TimeoutError, BlockingIOError):
                self.returncode = int.from_bytes(_receive(self._connection, 4), "big", signed=True)
                self._connection.close()
        return self.returncode


class ForkServer:
    """The process that has imported everything. It forks for each connection to its socket."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.address = str(Path(self.folder.name) / "s")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(self.address)
            listening.listen()
            number = listening.fileno()
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(number)], env=environment, pass_fds=[number], start_new_session=True
            )
        atexit.register(self.stop)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


def start(arguments: Sequence[str], cwd: Path, environment: dict[str, str], new_session: bool) -> ForkedProcess:
    """Start `python -m vitreous ARGUMENTS`."""
    global _server  # noqa: PLW0603 (one per test process)
    if _server is None:
        _server = ForkServer()
    pipes = [os.pipe() for _ in range(2)]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_server.address)
    request = {"arguments": list(arguments), "cwd": str(cwd), "environment": environment, "new_session": new_session}
    data = json.dumps(request).encode()
    socket.send_fds(connection, [len(data).to_bytes(4, "big")], [write for _, write in pipes])
    connection.sendall(data)
    for _, write in pipes:
        os.close(write)
    return ForkedProcess(arguments, connection, [os.fdopen(read, encoding="utf-8") for read, _ in pipes])


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise RuntimeError("the fork server has ended")
        data += more
    return data


# ---------------------------------------------------------------- the server


def serve(listening: socket.socket) -> None:
    """Fork for each request. Returns in the new process, which then has its arguments."""
    connections: dict[int, socket.socket] = {}
    listening.settimeout(0.01)
    while True:
        while connections:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if (done := connections.pop(pid, None)) is not None:
                _reply(done, os.waitstatus_to_exitcode(status))
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            continue
        connection.settimeout(None)
        header, outputs, _, _ = socket.recv_fds(connection, 4, 2)
        request = json.loads(_receive(connection, int.from_bytes(header, "big")))
        pid = os.fork()
        if pid == 0:
            for other in (listening, connection, *connections.values()):
                other.close()
            become(request, outputs)
            return
        for output in outputs:
            os.close(output)
        connections[pid] = connection
        connection.sendall(pid.to_bytes(4, "big"))


def _reply(connection: socket.socket, code: int) -> None:
    with suppress(OSError), connection:  # the test may have ended
        connection.sendall(code.to_bytes(4, "big", signed=True))


def become(request: dict[str, Any], outputs: Sequence[int]) -> None:
    """Take over working directory, environment, session and streams of a request."""
    if request["new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for output, number in zip(outputs, (STDOUT, STDERR), strict=True):
        os.dup2(output, number)
        os.close(output)
    sys.stdout = os.fdopen(os.dup(STDOUT), "w", encoding="utf-8")
    sys.stderr = os.fdopen(os.dup(STDERR), "w", encoding="utf-8", buffering=1)
    sys.argv = ["vitreous/__main__.py", *request["arguments"]]
    sys.path[0] = request["cwd"]


if __name__ == "__main__":
    for module in IMPORTED:
        import_module(module)
    serve(socket.socket(fileno=int(sys.argv[1])))
    from vitreous.cli import main

    main()
