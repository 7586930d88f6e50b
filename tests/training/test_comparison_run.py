"""`--compare-with`: which runs can be compared, and what the report shows of them."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers import tiny_vit
from runs import TINY, config, draw_folder
from vitreous import TrainConfig, VitreousError, resume, save, train
from vitreous.training.setting_differences import differing_settings


@pytest.fixture(scope="module")
def scratch(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "scratch"
    train(folder, config(run), quiet=True)
    return run


def page(run: Path) -> str:
    return (run / "report.html").read_text("utf-8")


def rows(run: Path) -> dict[str, list[str]]:
    """Return the rows of the comparison table."""
    table = page(run).partition('<table class="runs">')[2].partition("</table>")[0]
    lines = [line for line in re.split("<tr[^>]*>", table.partition("<tbody>")[2]) if line]
    cells = [re.findall("<t[hd][^>]*>(.*?)</t[hd]>", line) for line in lines]
    return {name: values for name, *values in cells}


def test_report_shows_both_runs(scratch: Path, folder: Path, tmp_path: Path) -> None:
    save(tiny_vit(image_size=16, patch_size=4), tmp_path / "begin.safetensors")
    begun = TrainConfig().with_(start=str(tmp_path / "begin.safetensors"), batch_size=16, duration="16 steps")
    outcome = train(folder, begun, compare_with=str(scratch), out=str(tmp_path / "transfer"), device="cpu", quiet=True)
    found = rows(outcome.run)
    theirs = json.loads((scratch / "result.json").read_text())["result"]["top1"]
    assert found["accuracy"] == [f"{100 * outcome.result.top1:.1f}%", f"{100 * theirs:.1f}%"]
    assert found["measured on"] == ["14 val images", "14 val images"]
    assert found["epochs"] == ["4.41", "3.31"]
    assert found["initial weights"] == ["begin.safetensors", "random weights"]
    section = page(outcome.run).partition('id="comparison"')[2].partition("</section>")[0]
    assert section.count('data-name="transfer"') == section.count('data-name="scratch"') == 2  # accuracy and loss
    assert "other images" not in page(outcome.run)
    assert 'id="comparison"' not in page(scratch)


def test_several_runs(scratch: Path, folder: Path, tmp_path: Path, vitreous) -> None:
    """Each has its own line style, and the table shows only settings that are not equal in all of them."""
    other = draw_folder(tmp_path / "data", images=20)
    train(folder, config(tmp_path / "seed1", seed=1, duration="6 steps"), quiet=True)
    train(other, config(tmp_path / "few", duration="6 steps", lr=1e-3), quiet=True)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    paths = (scratch, tmp_path / "seed1", tmp_path / "few", scratch)  # one of them twice
    done = vitreous("train", folder, *flags, "--out", "run", "--compare-with", *paths)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    assert page(run).count('data-name="scratch"') == page(run).count('data-name="seed1"') == 2
    assert [f'class="line run{number}" data-name=' in page(run) for number in range(5)] == [True] * 4 + [False]
    found = rows(run)
    assert found["measured on"][1:] == [*["14 val images"] * 2, "12 val images, other images than those of this run"]
    assert found["seed"] == ["0", "0", "1", "0"]
    assert found["duration"] == ["12 steps", "12 steps", "6 steps", "6 steps"]
    assert len(set(found["lr"])) == 2
    assert not {"out", "width", "compare_with"} & found.keys()
    notes = page(run).partition('id="notes"')[2].partition("</section>")[0]
    assert notes.count("other images than this run") == 1
    stored = json.loads((run / "config.json").read_text())["config"]["compare_with"]
    assert stored == [str(path) for path in paths[:3]]


def test_too_many_runs_and_a_bad_one(scratch: Path, folder: Path, tmp_path: Path, vitreous) -> None:
    done = vitreous("train", folder, "--compare-with", scratch, f"--compare-with={scratch}")
    assert done.returncode == 2
    assert "--compare-with is given twice" in done.stderr
    with pytest.raises(VitreousError, match=r"compare_with: 16 runs; .*give at most 15"):
        train(folder, config(tmp_path / "run", compare_with=[f"run{n}" for n in range(16)]), quiet=True)
    with pytest.raises(VitreousError, match=r"compare_with: .*nowhere: there is no such run directory"):
        train(folder, config(tmp_path / "run", compare_with=[scratch, tmp_path / "nowhere"]), quiet=True)
    with pytest.raises(VitreousError, match="compare_with = "):
        config(tmp_path / "run", compare_with=[3])
    assert not (tmp_path / "run").exists()


def test_differing_settings() -> None:
    """Defaults of fields that an older version did not have count; initial weights are compared by their content."""
    flat = json.loads(json.dumps(TrainConfig().with_(lr=1e-3, duration="40 steps", ema=0).flat()))
    weights = [{"source": f"/{letter}/model.npz", "digest": letter * 32} for letter in "ab"]
    older = {name: value for name, value in flat.items() if name not in ("patience", "betas")}
    one = {"config": older, "start": weights[0]}
    two = {"config": {**flat, "duration": "40steps", "ema": 0.0, "out": "x", "workers": 3}, "start": weights[1]}
    assert differing_settings([one, two]) == [
        {"initial_weights": "model.npz (aaaaaaaa)"},
        {"initial_weights": "model.npz (bbbbbbbb)"},
    ]
    three = {"config": {**flat, "patience": 2}, "start": None}
    assert differing_settings([one, three]) == [
        {"initial_weights": "model.npz", "patience": None},
        {"initial_weights": "random weights", "patience": 2},
    ]


def test_unfinished_run_and_run_with_the_same_name(scratch: Path, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "run"
    shutil.copytree(scratch, other)
    (other / "result.json").unlink()
    train(folder, config(tmp_path / "run", compare_with=str(other), duration="6 steps"), quiet=True)
    assert rows(tmp_path / "run")["measured on"][1] == "val images, best so far"
    assert f'data-name="{other}"' in page(tmp_path / "run")
    (other / "metrics.jsonl").unlink()
    train(folder, config(tmp_path / "again", compare_with=str(other), duration="6 steps"), quiet=True)
    assert rows(tmp_path / "again")["measured on"][1] == "no evaluation yet"


def test_note_if_the_runs_used_different_images(scratch: Path, tmp_path: Path) -> None:
    data = draw_folder(tmp_path / "data", images=20)
    train(data, config(tmp_path / "run", compare_with=str(scratch), duration="6 steps"), quiet=True)
    assert "scratch was trained and evaluated on other images than this run" in page(tmp_path / "run")


def test_note_if_other_images_have_the_same_names(scratch: Path, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "farben")
    for path in (tmp_path / "farben").rglob("*.jpg"):
        Image.open(path).rotate(90).save(path)
    train(tmp_path / "farben", config(tmp_path / "run", compare_with=str(scratch), duration="6 steps"), quiet=True)
    descriptions = [json.loads((run / "config.json").read_text()) for run in (scratch, tmp_path / "run")]
    assert descriptions[0]["fingerprint"] == descriptions[1]["fingerprint"]
    assert "scratch was trained and evaluated on other images than this run" in page(tmp_path / "run")


def older(run: Path, target: Path) -> Path:
    shutil.copytree(run, target)
    description = json.loads((target / "config.json").read_text())
    del description["classes"]
    (target / "config.json").write_text(json.dumps(description))
    return target


def test_runs_that_cannot_be_compared(scratch: Path, folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", images=np.zeros((20, 8, 8), np.uint8), labels=np.arange(20) % 2)
    for data, other, message in (
        (folder, tmp_path / "nowhere", "compare_with: .*nowhere: there is no such run directory"),
        (folder, folder, "compare_with: .* is not a run directory"),
        (folder, older(scratch, tmp_path / "older"), "compare_with: .*older does not list its classes"),
        (
            tmp_path / "two.npz",
            scratch,
            r"compare_with: .* has other classes \('blau', 'grün', 'rot'\) than",
        ),
    ):
        with pytest.raises(VitreousError, match=message):
            train(data, config(tmp_path / "run", compare_with=str(other)), quiet=True)
        assert not (tmp_path / "run").exists()


def unfinished(run: Path) -> None:
    for name in ("result.json", "report.html"):
        (run / name).unlink()


def test_compare_with_may_change_on_resume(scratch: Path, folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(folder, config(run), quiet=True)
    stored = TrainConfig.from_flat(json.loads((run / "config.json").read_text())["config"])
    unfinished(run)
    resume(run, stored.with_(compare_with=str(scratch)), quiet=True)
    assert 'data-name="scratch"' in page(run)
    unfinished(run)
    with pytest.raises(VitreousError, match="is this run itself"):
        resume(run, stored.with_(compare_with=str(run)), quiet=True)


def test_compared_run_is_deleted_during_training(
    scratch: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitreous.training.loop import TrainingLoop

    other, run = tmp_path / "other", tmp_path / "run"
    shutil.copytree(scratch, other)
    whole = TrainingLoop.run

    def removing(loop: Any) -> None:
        whole(loop)
        shutil.rmtree(other)

    monkeypatch.setattr(TrainingLoop, "run", removing)
    outcome = train(folder, config(run, compare_with=str(other)), quiet=True)
    assert outcome.result is not None
    assert "the run to compare with could not be read" in page(run)
