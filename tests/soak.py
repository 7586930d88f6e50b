"""End runs in every way there is, over and over, and compare their weights with those of a run that nobody touched.

`python tests/soak.py [--minutes 10] [--seed 0]`, or `make soak`. Each round trains one small model; it is killed, told
to stop, hung up on, loses a decoding process or cannot write its files, at random moments, and is resumed until it
ends. A round that ends with other bits than the untouched run stops the soak, and the run directory is kept.
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
MOST_ATTEMPTS = 60
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
    """The disk does it."""


EVENTS: dict[str, Callable[[Process], None]] = {
    "killed": kill,
    "terminated, with its group": terminate_group,
    "hung up on, with its group": hang_up_group,
    "interrupted": interrupt,
    "a worker killed": kill_worker,
    "disk full": nothing,
}


def full_disk() -> None:
    """Files cannot grow beyond a size that no state fits into, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def attempt(arguments: tuple[object, ...], place: Path, event: str | None) -> int:
    """Begin a run, or go on with it, and end it by the event at a random moment; its exit status."""
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
        raise SystemExit(f"{place}: a run that was {event} did not end in two minutes") from None
    if "Traceback" in error:
        raise SystemExit(f"{place}: a run that was {event} ended in a traceback:\n{error}")
    return process.returncode


def one_round(data: Path, place: Path, counts: Counter[str]) -> None:
    """A run that is ended until it has come to its end."""
    for _ in range(MOST_ATTEMPTS):
        event = random.choice([*EVENTS, *EVENTS, None])
        there = (place / "run" / "config.json").exists()
        arguments = ("train", "--resume", "run") if there else ("train", data, *OPTIONS, "--out", "run")
        attempt(arguments, place, event)
        counts[event or "left alone"] += 1
        if (place / "run" / "result.json").exists():
            return
    raise SystemExit(f"{place}: not finished after {MOST_ATTEMPTS} attempts")


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
        raise SystemExit("the untouched run failed")
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
                raise SystemExit(f"{place}: {name} is not that of the untouched run")
        if left := list((place / "run").rglob(".*.tmp")):
            raise SystemExit(f"{place}: left behind: {', '.join(map(str, left))}")
        shutil.rmtree(place)
        rounds += 1
        told = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        print(
            f"{rounds} runs ended with the same bits ({told}); {max(0, ends - time.monotonic()):.0f} s left", flush=True
        )
    shutil.rmtree(root)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
