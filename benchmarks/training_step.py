"""Time one training step, on the host and on the GPU: `python benchmarks/training_step.py DATA [FIELD=VALUE ...]`

Needs a CUDA GPU. One step on DATA, with the given fields of TrainConfig: eager ("plain"), compiled, and compiled and
recorded as a CUDA graph ("recorded"). `host_ms` is the time the host spends on a step, `step_ms` the time per step in a
row of steps, `kernel_ms` the time kernels run in one step.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

import vitreous
from harness import argument_parser, environment, parse_fields, require_gpu, write_result
from vitreous.training.distributed import World
from vitreous.training.loaders import build_loaders
from vitreous.training.plan import make_plan
from vitreous.training.trainer import build_engine
from vitreous.utils.progress import ProgressReporter
from vitreous.utils.torch_settings import run_settings


def time_step(step: Callable[[], object], repeats: int = 50) -> dict[str, float]:
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
    made = make_plan(data, config, world)
    fed = build_loaders(data, made, world, ProgressReporter(quiet=True))
    results: dict[str, dict[str, float]] = {}
    for name in ("plain", "compiled", "recorded"):
        torch.compiler.reset()
        engine = build_engine(data, made, fed)
        engine.model.train()
        if name != "plain":
            engine.compile()
            engine.captures = name == "recorded"
        batches = fed.train.batches(0, 1 << 40)
        began = time.perf_counter()
        engine.step(next(batches), 0, made.batch_size, world)
        torch.cuda.synchronize()
        first = round(time.perf_counter() - began, 1)

        def step(engine=engine, batches=batches) -> None:  # type: ignore[no-untyped-def]
            engine.step(next(batches), 0, made.batch_size, world)

        results[name] = {"first_step_s": first, **time_step(step)}
        print(name, results[name], engine.notes)
    return results


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("data", help="data set to train on")
    parser.add_argument("fields", nargs="*", metavar="FIELD=VALUE", help="changed fields of TrainConfig")
    parser.add_argument("--out", type=Path, help="JSON file (default: only print)")
    options = parser.parse_intermixed_args()
    require_gpu()
    config = vitreous.TrainConfig().with_(compile="no", **parse_fields(options.fields))
    with run_settings(config.run.device, config.run.deterministic):
        results = measure(options.data, config)
    if options.out:
        write_result(options.out, {**environment(), "results": results})


if __name__ == "__main__":
    main()
