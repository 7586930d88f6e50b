"""Systems without the calls of POSIX: a process that looks like one on Windows trains, resumes and predicts.

It cannot show what only a real Windows or macOS does. See tests/other_system/sitecustomize.py for what is simulated.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pictures import classes, encoded, write_tar
from vitreous.utils.file_locks import is_file_locked, lock_file
from vitreous.utils.system_calls import is_process_alive, read_at

SHIM = Path(__file__).parent / "other_system"
PROGRAM = """
import os, shutil, signal, sys
from contextlib import redirect_stdout
from pathlib import Path
from vitreous import TrainConfig, VitreousError, train
from vitreous.cli import main
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.training.run_directory import RunDirectory
from vitreous.training.train import resume
from vitreous.utils import system_calls

if __name__ == "__main__":  # workers are spawned, and import this file
    assert system_calls.STOP_SIGNALS == (signal.SIGINT, signal.SIGTERM)
    assert not hasattr(system_calls.os, "pread")
    try:
        system_calls.exchange_paths(Path("a"), Path("b"))
    except OSError:
        pass
    else:
        raise AssertionError("folders were exchanged in one step")
    tiny = dict(model="Ti/16", image_size=12, patch_size=4, width=32, depth=1, heads=2, mlp_dim=32, device="cpu")
    config = TrainConfig().with_(**tiny, batch_size=8, duration="4 steps", workers=1, cache="never", out="run")
    config = config.with_(val_fraction=0.0)  # every pass over validation images would spawn a worker
    run = Path("run")
    train("photos", config, quiet=True)
    weights = (run / "last.safetensors").read_bytes()
    train("photos", config.with_(workers=0), quiet=True, overwrite=True)
    assert (run / "last.safetensors").read_bytes() == weights
    for name in ("result.json", "last.safetensors"):  # as if it had been killed at the end
        (run / name).unlink()
    resume("run", quiet=True)
    assert (run / "last.safetensors").read_bytes() == weights
    with RunDirectory.open("run").locked():
        pass
    shards = open_data("photos.tar", Reading(val_fraction=0)).train
    assert len({shards.content(i) for i in range(len(shards))}) == 12
    for arguments in (
        ["data", "photos", "--sheet", "sheet.png", "--overwrite"],
        ["predict", "photos/cats/000.png", "--model", "run"],
        ["convert", "run", "copy.safetensors", "--to", "native", "--overwrite"],
    ):
        for _ in range(2):
            main(arguments)
    print("done", flush=True)
"""


def test_training_with_the_calls_of_windows(tmp_path: Path) -> None:
    classes(tmp_path / "photos", {"cats": 12, "dögs": 12})
    write_tar(tmp_path / "photos.tar", {f"{c}/{i}.png": encoded(9 * c + i) for c in range(2) for i in range(6)})
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(SHIM), "OMP_NUM_THREADS": "1"}
    typed = [sys.executable, "-X", "warn_default_encoding", "-W", "ignore::EncodingWarning", "program.py"]
    done = subprocess.run(
        typed, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")


def test_locks(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    start = f"from vitreous.utils.file_locks import is_file_locked, lock_file; file = open({str(path)!r}, 'rb+'); "

    def other_process(code: str) -> str:
        done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    with path.open("wb") as file:
        lock_file(file)
        assert "Resource temporarily unavailable" in other_process("lock_file(file)")
        assert other_process("print(is_file_locked(file))") == "True\n"
        assert not is_file_locked(file)  # this process has locked it, no other
    assert other_process("print(is_file_locked(file)); lock_file(file)") == "False\n"


def test_reads_at_an_offset_and_living_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    with path.open("rb") as file:
        with_pread = read_at(file.fileno(), 10, 50)
        monkeypatch.delattr(os, "pread")
        assert with_pread == read_at(file.fileno(), 10, 50) == bytes(range(50, 60))
        assert read_at(file.fileno(), 10, 95) == bytes(range(95, 100))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert is_process_alive(os.getpid())
    assert not is_process_alive(ended.pid)
    assert not is_process_alive(1 << 40)
