"""Time loading a safetensors checkpoint with Vitreous, timm and transformers, each in its own process.

    python benchmarks/weights.py                    # B/16 and L/16, fp32, 5 processes each

Seconds are those of the load call, after imports, with the file in the page cache. When ours returns it has checked
every weight for NaN and infinity; transformers maps the file and reads a tensor when it is first used. Memory is the
peak resident size during the call, minus the size before it, divided by the size of the file. timm and transformers
load their own format; ours loads all three.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import torchvision_operators
import vitreous
from harness import RESULTS, argument_parser, environment, write_result

TIMM = {"Ti/16": "vit_tiny_patch16_224", "B/16": "vit_base_patch16_224", "L/16": "vit_large_patch16_224"}
PREPARE = """
import json, sys, time, warnings
import torch
import torchvision_operators
torchvision_operators.define_missing()

def memory(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))
"""
MEASURE = """
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before, begin = memory("VmRSS"), time.perf_counter()
model = load()
seconds = time.perf_counter() - begin
peak = memory("VmHWM") - before
checksum = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
print(json.dumps({"seconds": seconds, "peak": peak, "checksum": checksum}))
"""
PROGRAMS = {
    "vitreous, timm's file": "import vitreous, vitreous.weights.load\nload = lambda: vitreous.load({timm!r})",
    "vitreous, Hugging Face's": "import vitreous, vitreous.weights.load\nload = lambda: vitreous.load({hf!r})",
    "vitreous, its own": "import vitreous, vitreous.weights.load\nload = lambda: vitreous.load({own!r})",
    "timm": "import timm\nload = lambda: timm.create_model({name!r}, checkpoint_path={timm!r})",
    "transformers": (
        "import transformers\ntransformers.utils.logging.disable_progress_bar()\n"
        "from transformers import ViTForImageClassification\n"
        "load = lambda: ViTForImageClassification.from_pretrained({hf!r})"
    ),
}


def prepare(name: str, folder: Path) -> dict[str, str]:
    """Save one model with random weights in three dialects."""
    torch.manual_seed(0)
    model = vitreous.create(name, gelu="erf", resample="timm")
    torch.nn.init.normal_(model.head.weight, std=0.02)
    vitreous.save(model, folder / "timm", to="timm")
    vitreous.save(model, folder / "own.safetensors")
    hugging = vitreous.create(name, gelu="erf", resample="hf", norm_eps=1e-12)
    hugging.load_state_dict(model.state_dict())
    vitreous.save(hugging, folder / "hf", to="huggingface")
    return {
        "name": TIMM[name],
        "timm": str(folder / "timm" / "model.safetensors"),
        "hf": str(folder / "hf"),
        "own": str(folder / "own.safetensors"),
    }


def measure(program: str, paths: dict[str, str]) -> dict[str, float]:
    code = PREPARE + PROGRAMS[program].format(**paths) + MEASURE
    here = Path(__file__).parent  # `python -c` can import the modules of its working directory
    result = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{program} failed:\n{result.stderr}")
    numbers: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return numbers


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["B/16", "L/16"], choices=TIMM, help="default: B/16 L/16")
    parser.add_argument("--repeats", type=int, default=5, help="processes for each program and file (default: 5)")
    parser.add_argument("--out", type=Path, default=RESULTS / "weights-cpu.json", help="JSON file")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            paths = prepare(name, Path(folder))
            size = Path(paths["timm"]).stat().st_size
            runs: dict[str, list[dict[str, float]]] = {program: [] for program in PROGRAMS}
            for _ in range(options.repeats + 1):  # in turns, so that other load affects all of them alike
                for program in PROGRAMS:
                    runs[program].append(measure(program, paths))
            sums = {program: run[0]["checksum"] for program, run in runs.items()}
            assert max(sums.values()) - min(sums.values()) < 1e-6 * max(sums.values()), sums
            for program, run in runs.items():
                seconds = [r["seconds"] for r in run[1:]]  # the first fills the page cache
                row = {
                    "model": name,
                    "program": program,
                    "seconds": round(statistics.median(seconds), 4),
                    "spread": [round(min(seconds), 4), round(max(seconds), 4)],
                    "peak_over_file": round(statistics.median(r["peak"] for r in run[1:]) / size, 3),
                    "file_bytes": size,
                }
                rows.append(row)
                print(
                    f"{name:6} {program:26} {row['seconds']:8.3f} s   peak {row['peak_over_file']:.2f} x the file size"
                )
    torchvision_operators.define_missing()
    import timm  # `environment` records the versions
    import transformers  # noqa: F401

    assert timm
    write_result(options.out, environment("timm", "transformers", "safetensors") | {"rows": rows})


if __name__ == "__main__":
    main()
