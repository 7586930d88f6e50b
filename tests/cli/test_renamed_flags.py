"""Old names of flags and settings still work, with a warning; run directories that contain them can be resumed."""

import json
from pathlib import Path

import pytest

from command import vitreous
from runs import TINY_RUN, draw_folder
from vitreous import TrainConfig, VitreousWarning
from vitreous.cli.config_flags import replace_renamed_flags
from vitreous.training.config import RENAMED_FIELDS

RUN = (*TINY_RUN, "--workers", "0", "--duration", "2steps", "--evaluate-every", "2steps")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and a run `old`, started with the old flag names and stored with the old field names."""
    folder = tmp_path_factory.mktemp("renamed")
    draw_folder(folder / "data", images=8)
    assert vitreous("train", "data", "--out", "first", *RUN, cwd=folder).returncode == 0
    result = vitreous("train", "data", "--out", "old", *RUN, "--hold", "never", "--beside=first", cwd=folder)
    assert result.returncode == 0
    assert "--hold is now called --cache" in result.stderr
    assert "--beside is now called --compare-with" in result.stderr
    return folder


def test_values_of_old_flags_are_used(folder: Path) -> None:
    config = json.loads((folder / "old" / "config.json").read_text())["config"]
    assert config["cache"] == "never"
    assert [Path(run).name for run in config["compare_with"]] == ["first"]
    assert not config.keys() & RENAMED_FIELDS.keys()


def test_run_with_old_names_is_resumed(folder: Path) -> None:
    path = folder / "old" / "config.json"
    description = json.loads(path.read_text())
    for old, new in RENAMED_FIELDS.items():
        description["config"][old] = description["config"].pop(new)
    description["config"]["beside"] = description["config"]["beside"][0]  # one run, not a list
    path.write_text(json.dumps(description))
    (folder / "old" / "result.json").unlink()  # so that the run has to be completed
    result = vitreous("train", "--resume", "old", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "now called" not in result.stderr
    assert (folder / "old" / "result.json").is_file()


@pytest.mark.parametrize(
    ("old", "new", "value", "stored"),
    [("hold", "cache", "never", "never"), ("beside", "compare_with", "runs/a", ("runs/a",))],
)
def test_python(old: str, new: str, value: str, stored: object) -> None:
    with pytest.warns(VitreousWarning, match=f"{old} is now called {new}"):
        config = TrainConfig().with_(**{old: value})
    assert config.flat()[new] == stored


def test_only_flags_are_replaced() -> None:
    arguments = ["train", "--holder", "hold", "beside", "--out=--hold"]
    assert replace_renamed_flags(arguments) == arguments
