"""`compare`: one table of several models on several data sets, from cached features."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import SMALL_RESNET, draw, tiny_vit
from vitreous import BiT, BiTConfig, VitreousError, save
from vitreous.evaluation import store
from vitreous.evaluation.cache import FeatureCache
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.measures import MeasureSettings
from vitreous.experiments.compare import compare_models
from vitreous.experiments.suite import read_suite, suite_from_sources
from vitreous.preprocessing import Preprocessing

SETTINGS = MeasureSettings(shots=(1, 5), seeds=2)
METHODS = ("fewshot", "knn")


def colours(path: Path, seed: int = 0, each: int = 30) -> str:
    """Write random images of three classes that differ in mean colour."""
    random = np.random.default_rng(seed)
    parts = {}
    for part in ("train", "test"):
        labels = np.arange(3 * each) % 3
        centres = np.array([[150, 110, 110], [110, 150, 110], [110, 110, 150]])[labels]
        pixels = random.normal(centres[:, None, None], 30, (3 * each, 16, 16, 3)).clip(0, 255).astype(np.uint8)
        parts |= {f"x_{part}": pixels, f"y_{part}": labels}
    np.savez(path, **parts)
    return str(path)


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    vit, hybrid = tiny_vit(), tiny_vit(backbone=SMALL_RESNET, patch_size=1, num_classes=0)
    bit = draw(BiT(BiTConfig(blocks=(1, 1), width_factor=0.5, image_size=32, num_classes=7)))
    paths = []
    for name, model in (("vit", vit), ("hybrid", hybrid), ("bit", bit)):
        model.preprocessing = Preprocessing(32)
        save(model, tmp_path / f"{name}.safetensors")
        paths.append(str(tmp_path / f"{name}.safetensors"))
    return paths


def test_table_of_vit_hybrid_and_bit(tmp_path: Path, models: list[str]) -> None:
    data = [colours(tmp_path / "a.npz"), colours(tmp_path / "b.npz", 1)]
    cache, options = FeatureCache(tmp_path / "cache"), InferenceOptions()
    found = compare_models(models, suite_from_sources(data), METHODS, cache, options, SETTINGS)
    assert found.models == ("vit", "hybrid", "bit")
    names = [(row.data, row.measure) for row in found.rows]
    measures = ["1-shot", "5-shot", "k-NN"]
    assert names == [(data, measure) for data in ("a", "b", "") for measure in measures]
    for row in range(3):
        for model in range(3):
            first, second = found.rows[row].values[model], found.rows[row + 3].values[model]
            assert found.rows[row + 6].values[model] == pytest.approx((first.mean + second.mean) / 2)  # type: ignore[union-attr]
    assert all(value.mean > 0.4 for value in found.rows[1].values)  # type: ignore[union-attr]
    lines = found.markdown().splitlines()
    assert lines[0] == "| data | measure | vit | hybrid | bit |"
    assert len([line for line in lines if line.startswith("|")]) == 11
    notes = [line for line in lines[11:] if not line.startswith("- WARNING: ")]
    assert notes == [
        "",
        *(f"- {name}: fitted on 90 images; tested on 90: test split" for name in "ab"),
        *(f"- weights of {name}: {how}" for name, how in zip(found.models, found.selections, strict=True)),
    ]
    assert "±" in lines[2]
    stored = json.loads(json.dumps(found.to_json()))
    assert stored["rows"][0]["values"]["vit"]["details"] == {"shots": 1}
    assert len({model["content_hash"] for model in stored["models"]}) == 3


def test_a_second_run_reads_the_cache(tmp_path: Path, models: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    suite, cache = suite_from_sources([colours(tmp_path / "a.npz")]), FeatureCache(tmp_path / "cache")
    first = compare_models(models[:1], suite, METHODS, cache, InferenceOptions(), SETTINGS)
    monkeypatch.setattr("vitreous.evaluation.cache.measure_features", None)
    monkeypatch.setattr(store, "feature_batches", None)
    assert compare_models(models[:1], suite, METHODS, cache, InferenceOptions(), SETTINGS) == first
    monkeypatch.undo()
    monkeypatch.setattr(store, "feature_batches", None)  # other shots use the same features
    assert (
        compare_models(models[:1], suite, METHODS, cache, InferenceOptions(), MeasureSettings(shots=(3,)))
        .rows[0]
        .measure
        == "3-shot"
    )


def test_finished_features_survive_an_interruption(
    tmp_path: Path, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SHARD", 20)
    suite, cache = suite_from_sources([colours(tmp_path / "a.npz")]), FeatureCache(tmp_path / "cache")
    write_tensors = store.write_tensors
    written: list[Path] = []

    def stop_after_three(path: Path, *rest: object) -> None:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(path)
        write_tensors(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "write_tensors", stop_after_three)
    with pytest.raises(KeyboardInterrupt):
        compare_models(models[:1], suite, METHODS, cache, InferenceOptions(batch_size=8), SETTINGS)
    dates = [path.stat().st_mtime_ns for path in written]
    monkeypatch.setattr(store, "write_tensors", write_tensors)
    compare_models(models[:1], suite, METHODS, cache, InferenceOptions(batch_size=8), SETTINGS)
    assert [path.stat().st_mtime_ns for path in written] == dates


def test_changed_images_are_evaluated_again(tmp_path: Path, models: list[str]) -> None:
    suite, cache = suite_from_sources([colours(tmp_path / "a.npz")]), FeatureCache(tmp_path / "cache")
    compare_models(models[:1], suite, ("knn",), cache, InferenceOptions(), SETTINGS)
    folders = {path.name for path in (tmp_path / "cache" / "features").iterdir()}
    colours(tmp_path / "a.npz", seed=5)
    compare_models(models[:1], suite, ("knn",), cache, InferenceOptions(), SETTINGS)
    assert len({path.name for path in (tmp_path / "cache" / "features").iterdir()} - folders) == 2


# ---------------------------------------------------------------- suites

SUITE = """
name = "small"
[[group]]
name = "natural"
[[group.data]]
source = "a.npz"
[[group.data]]
source = "b.npz"
name = "bee"
[[group]]
name = "structured"
[[group.data]]
source = "c.npz"
protocol = "vtab-1k"
images = 60
development = 12
"""


def test_suite_has_means_of_groups_and_of_all(tmp_path: Path, models: list[str]) -> None:
    for number, name in enumerate("abc"):
        colours(tmp_path / f"{name}.npz", number)
    (tmp_path / "suite.toml").write_text(SUITE)
    suite = read_suite(tmp_path / "suite.toml")
    found = compare_models(models[:1], suite, ("knn",), FeatureCache(tmp_path / "cache"), InferenceOptions(), SETTINGS)
    a, bee, natural, c, overall = found.rows
    assert [row.data for row in (a, bee, natural, c, overall)] == ["a", "bee", "", "c", ""]
    means = [row.values[0].mean for row in (a, bee, c)]  # type: ignore[union-attr]
    assert natural.values[0] == pytest.approx(np.mean(means[:2]))
    assert overall.values[0] == pytest.approx(np.mean(means))
    assert [data for data, _, _ in found.cells()] == ["a", "bee", "mean of natural", "c", "mean of all"]
    assert found.images["c"].startswith("fitted on 60 images; tested on 90")


def test_vtab_protocol_has_1000_training_and_200_development_images(tmp_path: Path) -> None:
    colours(tmp_path / "a.npz", each=400)
    (tmp_path / "s.toml").write_text('[[group]]\n[[group.data]]\nsource = "a.npz"\nprotocol = "vtab-1k"\n')
    ((_, task),) = read_suite(tmp_path / "s.toml").tasks
    images, settings = task.open(), task.measure_settings(MeasureSettings())
    assert (len(images.train), len(images.test), settings.development) == (1000, 1200, 200)
    assert torch.equal(images.train.labels, task.open().train.labels)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[group]", "cannot be read"),
        ("name = 'x'", r"there is no \[\[group\]\]"),
        ("[[group]]\nname = 'x'", r"there is no \[\[group.data\]\]"),
        ("[[group]]\n[[group.data]]\nname = 'x'", "without a source"),
        ("[[group]]\n[[group.data]]\nsource = 'x'\nshots = 3", "unknown keys in a data set: 'shots'"),
        ("[[group]]\n[[group.data]]\nsource = 'x'\nimages = 'all'", "expected an integer"),
        ("[[group]]\n[[group.data]]\nsource = 'x'\nprotocol = 'vtab'", "expected 'vtab-1k'"),
        ("[[group]]\n[[group.data]]\nsource = 'x'\nimages = 0", "images = 0: must be 1 or more"),
        ("[[group]]\n[[group.data]]\nsource = 'x'\nimages = -5", "images = -5: must be 1 or more"),
        ("[[group]]\n[[group.data]]\nsource = 'x'\ndevelopment = 0\nprotocol = 'vtab-1k'", "development = 0"),
        ("[[group]]\n[[group.data]]\nsource = 'x'\nseed = -1", "seed = -1: must be 0 or more"),
    ],
)
def test_wrong_suites_are_an_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(VitreousError, match=f"s.toml: .*{message}"):
        read_suite(tmp_path / "s.toml")


def test_repeated_data_sets_and_models_get_unique_names(tmp_path: Path, models: list[str]) -> None:
    colours(tmp_path / "a.npz")
    table = "[[group]]\n" + "".join(
        f"[[group.data]]\nsource = 'a.npz'\n{more}\n" for more in ("", "images = 30", "name = 'mine'", "images = 60")
    )
    (tmp_path / "s.toml").write_text(table)
    suite, cache = read_suite(tmp_path / "s.toml"), FeatureCache(tmp_path / "cache")
    found = compare_models([models[0], models[0]], suite, ("knn",), cache, InferenceOptions(), SETTINGS)
    source = str(tmp_path / "a.npz")
    assert list(found.images) == [f"{source} (1)", f"{source} (2)", "mine", f"{source} (3)"]
    assert [text.split()[2] for text in found.images.values()] == ["90", "30", "90", "60"]
    assert found.models == (f"{models[0]} (1)", f"{models[0]} (2)")
    assert len(found.to_json()["rows"][0]["values"]) == 2


def test_a_class_without_training_images_is_an_error(tmp_path: Path, models: list[str]) -> None:
    colours(tmp_path / "a.npz")
    (tmp_path / "s.toml").write_text("[[group]]\n[[group.data]]\nsource = 'a.npz'\nimages = 2\n")
    suite = read_suite(tmp_path / "s.toml")
    with pytest.raises(VitreousError, match=r"1 shots, but '\d' has only 0 training images"):
        compare_models(
            models,
            suite,
            ("fewshot",),
            FeatureCache(tmp_path / "cache"),
            InferenceOptions(),
            MeasureSettings(shots=(1,)),
        )


def test_errors_are_raised_before_any_feature_is_computed(tmp_path: Path, models: list[str]) -> None:
    data = colours(tmp_path / "a.npz", each=4)
    with pytest.raises(VitreousError, match="a: 25 shots, but '0' has only 4 training images"):
        compare_models(
            models, suite_from_sources([data]), ("fewshot",), FeatureCache(tmp_path / "cache"), InferenceOptions()
        )
    with pytest.raises(VitreousError, match="at least one model"):
        compare_models(
            [], suite_from_sources([data]), ("fewshot",), FeatureCache(tmp_path / "cache"), InferenceOptions()
        )
    assert not (tmp_path / "cache").exists()
