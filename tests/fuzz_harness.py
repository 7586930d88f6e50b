"""Run fuzz cases in child processes, with limits on the time and memory of each case.

`make test` runs a few cases, always the same. `make fuzz` runs VITREOUS_FUZZ times as many, from a random seed that is
printed. VITREOUS_FUZZ_SEED=SEED repeats a whole run, VITREOUS_FUZZ_CASE=KIND:SEED a single case.
"""

import ctypes
import multiprocessing
import os
import resource
import secrets
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch

from vitreous.errors import SystemFaultError, VitreousError

SECONDS, BYTES = 5.0, 1 << 30  # limits of a case; the bytes are in addition to the size of its files
HANGS = 4  # limit of wall-clock time, in multiples of SECONDS: other programs may use the processor
TIMES = int(os.environ.get("VITREOUS_FUZZ", "1"))
SEED = int(os.environ.get("VITREOUS_FUZZ_SEED", "0" if TIMES == 1 else str(secrets.randbelow(2**40))))
ONLY = os.environ.get("VITREOUS_FUZZ_CASE", "")
PROCESSES = 1 if TIMES == 1 else 2
EACH = 500  # cases of a child process
# Cases of each input format, of checkpoints and of data. `make fuzz` multiplies them by 50.
PLAN = {
    "checkpoints": {"pickled": 50, "zipped": 50, "JSON": 50, "safetensors": 30},
    "data": {
        **{"pickled": 40, "zipped": 40, "tar": 60, "zip": 60, "Parquet": 60, "CSV": 60, "JSON": 50},
        **{"image": 50, "raw array": 10},
    },
}


class Case(NamedTuple):
    kind: str
    seed: int


class Work(NamedTuple):
    """The function that a case runs under limits, and the size of its files."""

    size: int
    run: Callable[[], None]


class Ended(NamedTuple):
    """The result of a case: the fault, if there is one, and the time and memory it took."""

    wrong: str
    seconds: float
    bytes: int


Prepare = Callable[[Case], Work]


@dataclass
class Tally:
    """Statistics of many cases."""

    inputs: str
    cases: Counter[str] = field(default_factory=Counter)  # by format
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")
    wrong: list[str] = field(default_factory=list)

    def add(self, case: Case, form: str, ended: Ended) -> None:
        name = f"{case.kind}:{case.seed}"
        self.cases[form] += 1
        self.slowest = max(self.slowest, (ended.seconds, name))
        self.largest = max(self.largest, (ended.bytes, name))
        if ended.wrong:
            self.wrong.append(f"VITREOUS_FUZZ_CASE='{name}' make fuzz: {ended.wrong}")


TALLIES: list[Tally] = []


def summary() -> list[str]:
    """Return the summary that `make fuzz` prints at the end."""
    lines = [f"{sum(sum(tally.cases.values()) for tally in TALLIES):,} fuzz cases, VITREOUS_FUZZ_SEED={SEED}"]
    for tally in TALLIES:
        counts = ", ".join(f"{form} {count:,}" for form, count in tally.cases.items())
        lines += [
            f"{tally.inputs}: {counts}; {len(tally.wrong)} went wrong",
            f"  slowest {tally.slowest[0]:.2f} s ({tally.slowest[1]}), most memory above the files' size"
            f" {tally.largest[0] / 2**20:,.0f} MiB ({tally.largest[1]})",
        ]
    return lines


def fuzz(inputs: str, kinds: Mapping[str, Sequence[str]], prepare: Prepare) -> None:
    """Run the cases of PLAN, alternating between the kinds of each format. Fail if one of them has a fault."""
    assert list(kinds) == list(PLAN[inputs]), "every format has its kinds"
    cases, forms = [], {kind: form for form, names in kinds.items() for kind in names}
    for form, count in PLAN[inputs].items():
        draw = Random(f"{SEED} {inputs} {form}")
        cases += [Case(kinds[form][i % len(kinds[form])], draw.getrandbits(48)) for i in range(count * TIMES)]
    if ONLY:
        kind, seed = ONLY.rsplit(":", 1)
        cases = [Case(kind, int(seed))] if kind in forms else []
    tally = Tally(inputs)
    for case, ended in endure(cases, prepare):
        tally.add(case, forms[case.kind], ended)
    TALLIES.append(tally)
    assert not tally.wrong, "\n".join([f"{len(tally.wrong)} of {len(cases)} cases", *tally.wrong[:20]])


def attempt(function: Callable[..., object], *arguments: object) -> str:
    """Return the message of a VitreousError, or "" if the function returns. Other errors are raised."""
    try:
        function(*arguments)
    except SystemFaultError:
        raise
    except VitreousError as error:
        check_cause(error)
        said = str(error)
        assert 0 < len(said) < 4100, f"a message of {len(said)} characters"
        return said
    return ""


def check_cause(error: BaseException) -> None:
    """Raise if a refusal was caused by the memory limit of this process: elsewhere the memory would be allocated."""
    cause: BaseException | None = error
    seen: set[int] = set()  # the chain of a re-raised error may contain itself
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        assert not isinstance(cause, MemoryError), "out of memory"
        assert "allocate memory" not in str(cause), "out of memory"
        assert "Cannot allocate" not in str(cause), "out of memory"
        cause = cause.__cause__ or cause.__context__


# ---------------------------------------------------------------- one case, in a child


def measured(work: Work) -> Ended:
    trim_memory()
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = status("VmRSS")
    # Twice the limit, since address space is not memory. A larger allocation fails before it fills the machine.
    limit = status("VmSize") + 2 * (work.size + BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    clock, waited, processor = time.monotonic(), waiting(), time.process_time()
    wrong = ""
    try:
        work.run()
    except BaseException:
        wrong = traceback.format_exc(limit=-8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    seconds = max(time.monotonic() - clock - (waiting() - waited), time.process_time() - processor)
    taken = status("VmHWM") - before - work.size
    if seconds > SECONDS:
        wrong += f" took {seconds:.1f} s"
    if taken > BYTES:
        wrong += f" took {taken:,} bytes of memory more than its {work.size:,}"
    return Ended(wrong, seconds, taken)


def trim_memory() -> None:
    """Return free memory to the system, so that the next case is measured from zero."""
    with suppress(OSError, AttributeError):  # only in glibc
        ctypes.CDLL(None).malloc_trim(0)


def waiting() -> float:
    """Return the seconds that this thread has waited while other programs used the processor."""
    with suppress(OSError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def status(name: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


# ---------------------------------------------------------------- many cases, watched from outside


def serve(cases: Sequence[Case], prepare: Prepare, sender: Connection) -> None:
    """Run cases in a child process until one has a fault: after a fault the process may be in any state."""
    torch.set_num_threads(1)  # threads do not survive a fork
    for case in cases:
        ended = measured(prepare(case))
        sender.send(ended)
        if ended.wrong:
            return


class Child:
    """A child process and its queue of cases."""

    def __init__(self, cases: Sequence[Case], prepare: Prepare):
        context = multiprocessing.get_context("fork")
        self.receiver, sender = context.Pipe(duplex=False)
        self.cases = deque(cases)
        self.process = context.Process(target=serve, args=(cases, prepare, sender))
        self.process.start()
        sender.close()
        self.since = time.monotonic()

    def poll(self) -> Ended | None:
        """Return the result of the current case if it has ended, otherwise None."""
        try:
            if not self.receiver.poll():
                late = time.monotonic() - self.since > HANGS * SECONDS
                return Ended("hangs", time.monotonic() - self.since, 0) if late else None
            ended: Ended = self.receiver.recv()
            self.since = time.monotonic()
            return ended
        except EOFError:
            self.process.join(5)
            return Ended(f"kills the process ({self.process.exitcode})", 0.0, 0)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.receiver.close()


def endure(cases: Sequence[Case], prepare: Prepare) -> list[tuple[Case, Ended]]:
    """Run all cases and return their results."""
    parts = deque(list(cases[first : first + EACH]) for first in range(0, len(cases), EACH))
    children: list[Child] = []
    found = []
    while parts or children:
        while parts and len(children) < PROCESSES:
            children.append(Child(parts.popleft(), prepare))
        wait([child.receiver for child in children], timeout=0.2)
        for child in list(children):
            if (ended := child.poll()) is None:
                continue
            found.append((child.cases.popleft(), ended))
            if ended.wrong and child.cases:
                parts.appendleft(list(child.cases))
            if ended.wrong or not child.cases:
                children.remove(child)
                child.end()
    return found
