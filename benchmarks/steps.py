"""What a training step costs on a GPU, and who keeps whom waiting: `python benchmarks/steps.py DATA [FIELD=VALUE ...]`.

One step of DATA with the fields of TrainConfig that are given: as it is, compiled, and compiled and recorded as a CUDA
graph. `host_ms` is how long the host is busy with a step, `step_ms` how long steps take one after the other,
`kernel_ms` how long kernels run in one of them.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

import vitreous
from harness import environment, write
from training import fields_of
from vitreous.training.distributed import World
from vitreous.training.loaders import feed
from vitreous.training.plan import plan
from vitreous.training.train import _engine
from vitreous.utils.progress import Teller
from vitreous.utils.torch_settings import run_settings


def timed(step: Callable[[], object], repeats: int = 50) -> dict[str, float]:
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        step()
    host = time.perf_counter() - began
    torch.cuda.synchronize()
    whole = time.perf_counter() - began
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    kernels = sum(event.self_device_time_total for event in trace.key_averages()) / 5e3
    numbers = {"host_ms": 1e3 * host / repeats, "step_ms": 1e3 * whole / repeats, "kernel_ms": kernels}
    return {name: round(value, 2) for name, value in numbers.items()}


def measure(source: str, config: vitreous.TrainConfig) -> dict[str, dict[str, float]]:
    data, world = vitreous.open_data(source), World()
    made = plan(data, config, world)
    fed = feed(data, made, world, Teller(quiet=True))
    results: dict[str, dict[str, float]] = {}
    for name in ("plain", "compiled", "recorded"):
        torch.compiler.reset()
        engine = _engine(data, made, fed)
        engine.model.train()
        if name != "plain":
            engine.compile()
            engine.records = name == "recorded"
        batches = fed.train.batches(0, 1 << 40)
        began = time.perf_counter()
        engine.step(next(batches), 0, made.batch_size, world)
        torch.cuda.synchronize()
        first = round(time.perf_counter() - began, 1)

        def step(engine=engine, batches=batches) -> None:  # type: ignore[no-untyped-def]
            engine.step(next(batches), 0, made.batch_size, world)

        results[name] = {"first_step_s": first, **timed(step)}
        print(name, results[name], engine.notes)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("fields", nargs="*", metavar="FIELD=VALUE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_intermixed_args()
    config = vitreous.TrainConfig().with_(compile="no", **fields_of(options.fields))
    with run_settings(config.run.device, config.run.deterministic):
        results = measure(options.data, config)
    if options.out:
        write(options.out, {**environment(), "results": results})


if __name__ == "__main__":
    main()
