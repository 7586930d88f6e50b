"""Interrupt and resume runs in all ways, repeatedly, and compare their weights with those of an uninterrupted run.

`python tests/soak.py [--minutes 10] [--seed 0]`, or `make soak`. Each round trains one small model. At
random steps it is killed, gets a signal, loses a decoding process or cannot write its files, and it is resumed until it
is complete. If the weights differ from those of the uninterrupted run, the soak test stops and keeps the directory.
"""

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from runs import TINY_RUN, draw_folder, start, step_of

STEPS = 60
OPTIONS = (
    *TINY_RUN,
    *("--duration", f"{STEPS}steps", "--workers", "2", "--cache", "never", "--save-minutes", "0.005"),
    *("--crop", "0.5", "--dropout", "0.1", "--mixup", "0.5", "--stochastic-depth", "0.2"),
)
MAX_ATTEMPTS = 60
Process = subprocess.Popen[str]


def kill(process: Process) -> None:
    process.kill()


def terminate_group(process: Process) -> None:
    os.killpg(process.pid, signal.SIGTERM)


def hang_up_group(process: Process) -> None:
    os.killpg(process.pid, signal.SIGHUP)


def interrupt(process: Process) -> None:
    process.send_signal(signal.SIGINT)


def kill_worker(process: Process) -> None:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    if children:
        os.kill(int(random.choice(children)), signal.SIGKILL)


def nothing(process: Process) -> None:
    """Do nothing: the run itself fails, because its files cannot grow."""


EVENTS: dict[str, Callable[[Process], None]] = {
    "killed": kill,
    "SIGTERM to its group": terminate_group,
    "SIGHUP to its group": hang_up_group,
    "interrupted": interrupt,
    "worker killed": kill_worker,
    "disk full": nothing,
}


def full_disk() -> None:
    """Limit the file size below that of a state, so that writes fail as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def attempt(arguments: tuple[object, ...], place: Path, event: str | None) -> int:
    """Start or resume a run and interrupt it by the event at a random step; return its exit status."""
    options = {"preexec_fn": full_disk} if event == "disk full" else {}
    process = start(*arguments, cwd=place, start_new_session=True, **options)
    if event is not None:
        first, deadline = step_of(place / "run"), time.monotonic() + 60
        until = first + random.randint(0, STEPS // 3)
        while step_of(place / "run") <= until and process.poll() is None and time.monotonic() < deadline:
            time.sleep(random.random() * 0.02)
        if process.poll() is None:
            EVENTS[event](process)
    try:
        _, error = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise SystemExit(f"{place}: a run with event {event!r} did not end in two minutes") from None
    if "Traceback" in error:
        raise SystemExit(f"{place}: a run with event {event!r} ended in a traceback:\n{error}")
    return process.returncode


def one_round(data: Path, place: Path, counts: Counter[str]) -> None:
    """Interrupt and resume a run until it is complete."""
    for _ in range(MAX_ATTEMPTS):
        event = random.choice([*EVENTS, *EVENTS, None])
        there = (place / "run" / "config.json").exists()
        arguments = ("train", "--resume", "run") if there else ("train", data, *OPTIONS, "--out", "run")
        attempt(arguments, place, event)
        counts[event or "not interrupted"] += 1
        if (place / "run" / "result.json").exists():
            return
    raise SystemExit(f"{place}: not finished after {MAX_ATTEMPTS} attempts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    root = Path(tempfile.mkdtemp(prefix="vitreous-soak-"))
    data = draw_folder(root / "data")
    (root / "whole").mkdir()
    if attempt(("train", data, *OPTIONS, "--out", "run"), root / "whole", None):
        raise SystemExit("the uninterrupted run failed")
    names = ("best.safetensors", "last.safetensors")
    expected = {name: (root / "whole" / "run" / name).read_bytes() for name in names}
    counts: Counter[str] = Counter()
    ends, rounds = time.monotonic() + 60 * options.minutes, 0
    while time.monotonic() < ends:
        place = root / f"round-{rounds}"
        place.mkdir()
        one_round(data, place, counts)
        for name in names:
            if (place / "run" / name).read_bytes() != expected[name]:
                raise SystemExit(f"{place}: {name} differs from that of the uninterrupted run")
        if left := list((place / "run").rglob(".*.tmp")):
            raise SystemExit(f"{place}: files left over: {', '.join(map(str, left))}")
        shutil.rmtree(place)
        rounds += 1
        events = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        print(
            f"{rounds} runs ended with identical weights ({events}); {max(0, ends - time.monotonic()):.0f} s left",
            flush=True,
        )
    shutil.rmtree(root)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
