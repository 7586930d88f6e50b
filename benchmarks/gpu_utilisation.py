"""Measure how busy a training run keeps the GPU: `python benchmarks/gpu_utilisation.py DATA --seconds 120`

Needs a CUDA GPU and nvidia-smi. The run is stopped after --seconds. Utilisation is NVML's share of time in which a
kernel runs, sampled ten times a second after the first quarter of the steps, including evaluations. FIELD=VALUE are
fields of TrainConfig.
"""

import json
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import vitreous
from harness import argument_parser, environment, parse_fields, require_gpu, write_result
from vitreous.training.signals import Stopped


def sample_utilisation(samples: list[tuple[float, float]], done: threading.Event) -> None:
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
    process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while not done.is_set():
        samples.append((time.monotonic(), float(process.stdout.readline())))
    process.kill()


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("data", help="data set to train on")
    parser.add_argument("fields", nargs="*", metavar="FIELD=VALUE", help="changed fields of TrainConfig")
    parser.add_argument("--seconds", type=float, default=120, help="stop the run after this time (default: 120)")
    parser.add_argument("--out", type=Path, help="JSON file (default: only print)")
    options = parser.parse_intermixed_args()
    require_gpu()
    samples: list[tuple[float, float]] = []
    done = threading.Event()
    threading.Thread(target=sample_utilisation, args=(samples, done), daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        timer = threading.Timer(options.seconds, lambda: os.kill(os.getpid(), signal.SIGINT))
        began = time.monotonic()
        timer.start()
        try:
            vitreous.train(options.data, vitreous.TrainConfig().with_(out=str(run), **parse_fields(options.fields)))
        except Stopped as stop:
            print(stop)
        timer.cancel()
        ended = time.monotonic()
        done.set()
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        config = json.loads((run / "config.json").read_text())["config"]
    lines = [r for r in records if r["kind"] == "train"]
    steady = lines[len(lines) // 4 :]  # after compiling
    start = ended - (lines[-1]["seconds"] - steady[0]["seconds"])
    busy = [value for at, value in samples if start < at < ended - 1]
    result = {
        "busy_percent": round(statistics.fmean(busy), 1),
        "images_per_second": round(statistics.median(r["images_per_second"] for r in steady)),
        "data_wait": round(statistics.median(r["data_wait"] for r in steady), 4),
        "steps": lines[-1]["step"],
        "seconds": round(ended - began, 1),
        "memory_gib": round(lines[-1]["memory_bytes"] / 2**30, 2),
        "last": [r for r in records if r["kind"] == "eval"][-2:],
        "events": [r["text"] for r in records if r["kind"] == "event"],
        "config": config,
    }
    print(json.dumps({k: v for k, v in result.items() if k != "config"}, indent=1))
    if options.out:
        write_result(options.out, {**environment(), "result": result})


if __name__ == "__main__":
    main()
