"""`reproduce figure6`: attention rollout."""

from pathlib import Path

import numpy as np
import pytest
from inspection_runs import assert_redrawn, saved_model, values_of

from helpers import SMALL_RESNET, draw
from vitreous import BiT, BiTConfig, VitreousError, load, save
from vitreous.data.open_data import open_data
from vitreous.experiments.experiment_result import ExperimentResult
from vitreous.experiments.grid.inspection_measures import spread_over_classes
from vitreous.experiments.grid.packed_values import pack_array, png_text, read_png_text, unpack_array
from vitreous.experiments.reproduce import reproduce
from vitreous.inspection import rollout
from vitreous.weights.model_info import preprocessing_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    return reproduce("figure6", out=tmp_path_factory.mktemp("figure6"), device="cpu", quiet=True)


def test_it_is_drawn_again_from_its_result(trained: ExperimentResult, tmp_path: Path) -> None:
    assert_redrawn(trained, tmp_path)


def test_maps_of_the_pretrained_model(trained: ExperimentResult) -> None:
    found = values_of(trained)["rollout"]
    assert found["source"] == "class token"
    labels = [image["class"] for image in found["images"]]
    assert len(labels) == len(set(labels)) == 6

    assert trained.folder is not None
    model = load(trained.folder.parent / "cells" / trained.records.cells[0].run / "last.safetensors")
    test = open_data("digits").test
    assert test is not None
    preprocessing = preprocessing_of(model)
    by_name = {test.name(index): index for index in range(len(test))}
    for image in found["images"]:
        original = test.image(by_name[image["name"]])
        expected = rollout(model, preprocessing(original)[None]).seen_from("class")[0]
        np.testing.assert_allclose(unpack_array(image["map"]), expected, atol=1e-6)
        assert read_png_text(image["png"]).shape == (8, 8, 3)
        np.testing.assert_allclose(read_png_text(image["png"])[..., 0], np.asarray(original) / 255, atol=1e-6)


def test_table(trained: ExperimentResult) -> None:
    table = trained.table
    assert len(table.rows) == 6
    for row in table.rows:
        assert row[2] == 16
        assert isinstance(row[3], float)
        assert 0 < row[3] <= 50 + 100 / 16
        assert isinstance(row[4], float)
        assert 0 < row[4] < 100
    assert trained.verdict.answer == "none"


def test_given_model(tmp_path: Path) -> None:
    model = saved_model(tmp_path / "given.safetensors", num_classes=0)
    result = reproduce("figure6", model=model, out=tmp_path / "out", device="cpu", quiet=True)
    found = values_of(result)["rollout"]
    assert len({image["class"] for image in found["images"]}) == 6  # of all ten digits: none is held out
    assert result.records.cells[0].run == ""  # nothing was trained
    assert result.measured_on()[:2] == ["Model: given.", "Images: digits."]
    assert [path.name for path in (tmp_path / "out" / "cells").iterdir() if path.is_dir()] == []
    assert_redrawn(result, tmp_path / "again")

    other = saved_model(tmp_path / "given.safetensors", num_classes=0, depth=1)  # the same path, other weights
    with pytest.raises(VitreousError, match="other settings or data"):
        reproduce("figure6", model=other, out=tmp_path / "out", device="cpu", quiet=True)


def test_model_without_class_token(tmp_path: Path) -> None:
    model = saved_model(tmp_path / "gap.safetensors", class_token=False, pool="gap")
    result = reproduce("figure6", model=model, out=tmp_path / "out", device="cpu", quiet=True)
    found = values_of(result)["rollout"]
    assert found["source"] == "mean of the patches"
    assert "Rollout from the mean of the patches" in result.table.markdown()
    for image in found["images"]:
        assert unpack_array(image["map"]).sum() == pytest.approx(1, abs=1e-4)


def test_model_without_attention(tmp_path: Path) -> None:
    bit = draw(BiT(BiTConfig(blocks=(1, 1), width_factor=0.5, image_size=32, num_classes=7)))
    save(bit, tmp_path / "bit.safetensors")
    result = reproduce("figure6", model=tmp_path / "bit.safetensors", out=tmp_path / "out", device="cpu", quiet=True)
    assert "has no attention" in result.records.failed[0].error
    assert result.table.rows == ()
    assert_redrawn(result, tmp_path / "again")


def test_hybrid(tmp_path: Path) -> None:
    model = saved_model(tmp_path / "hybrid.safetensors", backbone=SMALL_RESNET, patch_size=1, num_classes=0)
    result = reproduce("figure6", model=model, out=tmp_path / "out", device="cpu", quiet=True)
    assert len(values_of(result)["rollout"]["images"]) == 6


def test_one_image_of_each_class(tmp_path: Path) -> None:
    """No split is held out for a given model, so such data can be used. Its content is part of the key."""
    model, keys = saved_model(tmp_path / "given.safetensors"), set()
    for shade in (0, 1):
        pixels = np.random.default_rng(shade).integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
        np.savez(tmp_path / "one.npz", x_train=pixels, y_train=np.arange(8))
        arguments = {"model": model, "data": tmp_path / "one.npz", "scale": "small", "overwrite": True}
        result = reproduce("figure6", **arguments, out=tmp_path / "out", device="cpu", quiet=True)
        assert [image["class"] for image in values_of(result)["rollout"]["images"]] == list("012345")
        keys.add(result.records.cells[0].key)
    assert len(keys) == 2


def test_images_are_needed_for_a_given_model(tmp_path: Path) -> None:
    model = saved_model(tmp_path / "given.safetensors")
    with pytest.raises(VitreousError, match=r"needs images to show to the model: give some with --data"):
        reproduce("figure6", model=model, scale="small", out=tmp_path / "out", quiet=True)


def test_no_model_for_other_experiments(tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match="takes no --model"):
        reproduce("figure9", model=saved_model(tmp_path / "given.safetensors"), out=tmp_path / "out", quiet=True)


def test_images_are_spread_over_classes() -> None:
    source = open_data("digits").test
    assert source is not None
    order = spread_over_classes(source)
    assert sorted(order) == list(range(len(source)))
    assert len(set(source.labels[order[:10]].tolist())) == 10
    assert order[:10] == sorted(order[:10])


def test_packed_values() -> None:
    packed = pack_array([[0.12345, -0.00001], [1, 2]], 3)
    assert packed == {"shape": [2, 2], "values": "0.123 0.000 1.000 2.000"}
    assert unpack_array(packed).tolist() == [[0.123, 0], [1, 2]]
    for damaged in ({}, {"shape": [3], "values": "1 2"}, {"shape": [1], "values": "x"}, {"shape": [1], "values": 1}):
        with pytest.raises(VitreousError, match="damaged"):
            unpack_array(damaged)
    pixels = np.random.default_rng(0).integers(0, 256, (100, 50, 3)) / 255
    assert np.abs(read_png_text(png_text(pixels)) - pixels).max() < 1e-6
    assert read_png_text(png_text(pixels, 96)).shape == (96, 48, 3)
    for text in ("", "AAAA", "%"):
        with pytest.raises(VitreousError, match="damaged"):
            read_png_text(text)
    with pytest.raises(VitreousError, match="1024"):
        read_png_text(png_text(np.zeros((1025, 1))))
