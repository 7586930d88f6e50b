"""The functions that do what the commands do: the same numbers, files and warnings, for paths and models in memory."""

import json
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import command
import runs
import vitreous
from helpers import tiny_vit
from vitreous import VitreousError, VitreousWarning
from vitreous.evaluation.evaluated_model import EvaluatedModel
from vitreous.preprocessing import Preprocessing

TINY = ("--device", "cpu", "--workers", "0")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of images, a checkpoint, and the run directory of a model that was trained on the images."""
    folder = tmp_path_factory.mktemp("api")
    with chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "xdg"))
        runs.draw_folder(folder / "colours")
        runs.complete("train", "colours", *runs.TINY_RUN, "--out", "run", "--workers", "0", cwd=folder)
        model = tiny_vit()
        model.labels, model.preprocessing = ("a", "b", "blau", "c", "grün", "d", "rot"), Preprocessing(size=32)
        vitreous.save(model, "other.safetensors")
        yield folder


@pytest.fixture(autouse=True)
def _inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "xdg"))


def printed_json(*arguments: object) -> Any:
    result = command.vitreous(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def as_json(result: Any) -> Any:
    return json.loads(json.dumps(result.to_json()))


def without_times(value: Any) -> Any:
    """Remove the measured times, and the name of the model, from the JSON of a result."""
    if isinstance(value, dict):
        left = {k: v for k, v in value.items() if k not in ("seconds", "images_per_second")}
        return {k: without_times(v) if k != "model" else v["content_hash"] for k, v in left.items()}
    return [without_times(item) for item in value] if isinstance(value, list) else value


# ---------------------------------------------------------------- the same numbers as the commands


def test_evaluate_gives_the_json_of_the_command() -> None:
    """For a path and for a model in memory, with the measures of features and the warnings."""
    options = {"split": "val", "val_fraction": 0.2}
    typed = ("--split", "val", "--val-fraction", "0.2")
    for name in ("run", "other.safetensors"):
        expected = printed_json("evaluate", "colours", "--model", name, "--with", "knn", *typed, *TINY)
        for model in (name, Path(name), vitreous.load(name)):
            with pytest.warns(VitreousWarning) as raised:
                found = vitreous.evaluate(model, "colours", methods=["knn"], workers=0, quiet=True, **options)
            assert without_times(as_json(found)) == without_times(expected)
            assert [str(one.message) for one in raised] == list(found.warnings) == expected["warnings"]
            assert all(one.filename == __file__ for one in raised)  # at the line of the caller


def test_a_run_directory_leaves_out_its_training_images_also_in_memory() -> None:
    with pytest.warns(VitreousWarning, match="used to select these weights"):
        by_path = vitreous.evaluate("run", "colours", workers=0, quiet=True)
    with pytest.warns(VitreousWarning, match="used to select these weights"):
        in_memory = vitreous.evaluate(vitreous.load("run"), "colours", workers=0, quiet=True)
    assert "training images" in by_path.left_out
    assert by_path.images < 72
    assert (in_memory.images, in_memory.left_out) == (by_path.images, by_path.left_out)
    assert in_memory.result.top1 == by_path.result.top1
    assert in_memory.evaluated.selection == by_path.evaluated.selection


def test_changed_weights_are_not_taken_for_those_of_the_file() -> None:
    model = vitreous.load("run")
    with torch.no_grad():
        model.head.bias += 1  # type: ignore[operator, union-attr]
    with pytest.warns(VitreousWarning, match="not known which images"):
        found = vitreous.evaluate(model, "colours", workers=0, quiet=True)
    assert found.images == 72
    assert "differs from run" in found.evaluated.selection


def test_evaluate_writes_the_files_of_the_command(tmp_path: Path) -> None:
    typed = ("--split", "all", "--csv", tmp_path / "cli.csv", "--out", tmp_path / "cli")
    assert command.vitreous("evaluate", "colours", "--model", "other.safetensors", *typed, *TINY).returncode == 0
    files: Any = {"csv": tmp_path / "api.csv", "out": tmp_path / "api"}
    with pytest.warns(VitreousWarning):
        found = vitreous.evaluate("other.safetensors", "colours", split="all", workers=0, quiet=True, **files)
    assert (tmp_path / "api.csv").read_bytes() == (tmp_path / "cli.csv").read_bytes()
    assert {path.name for path in (tmp_path / "api").iterdir()} == {path.name for path in (tmp_path / "cli").iterdir()}
    found.to_csv(tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "cli.csv").read_bytes()
    with pytest.raises(VitreousError, match="exists already"):
        vitreous.evaluate("other.safetensors", "colours", csv=tmp_path / "api.csv")


def test_predict_gives_the_json_and_csv_of_the_command(tmp_path: Path) -> None:
    printed = command.vitreous("predict", "colours", "--model", "run", "--csv", tmp_path / "cli.csv", "--json")
    expected = [json.loads(line) for line in printed.stdout.splitlines()]
    for model in ("run", vitreous.load("run")):
        found = vitreous.predict(model, "colours", quiet=True)
        assert found.to_json() == expected
        assert len(found) == 72
        found.to_csv(tmp_path / "api.csv", overwrite=True)
        assert (tmp_path / "api.csv").read_bytes() == (tmp_path / "cli.csv").read_bytes()
    assert found[0].label == expected[0]["top"][0]["label"]
    assert found[3:5].to_json() == expected[3:5]
    assert found.classes == ("blau", "grün", "rot")


def test_predict_takes_paths_images_arrays_and_tensors() -> None:
    paths = sorted(Path("colours", "rot").iterdir())[:3]
    by_path = vitreous.predict("run", paths, quiet=True)
    pictures = [Image.open(path) for path in paths]
    arrays = [np.array(picture) for picture in pictures]
    tensors = [torch.from_numpy(array).permute(2, 0, 1) for array in arrays]
    for images in (pictures, arrays, tensors, [path.read_bytes() for path in paths]):
        found = vitreous.predict("run", images, quiet=True)
        assert [one.top for one in found] == [one.top for one in by_path]
        assert [one.image for one in found] == ["image 0", "image 1", "image 2"]
    same_size = np.stack([array[:20, :20] for array in arrays])
    batch = vitreous.predict("run", same_size, quiet=True)
    for one, image in zip(batch, same_size, strict=True):
        assert one.probability == pytest.approx(vitreous.predict("run", image, quiet=True)[0].probability, abs=1e-6)
    assert [one.image for one in vitreous.predict("run", [paths[0], paths[0]], quiet=True)] == [str(paths[0])] * 2


def test_predict_reports_damaged_files_and_refuses_what_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    good = next(Path("colours", "rot").iterdir())
    with pytest.warns(VitreousWarning, match="left out: 1 image that cannot be read"):
        found = vitreous.predict("run", [tmp_path / "broken.jpg", good], quiet=True)
    assert found[0].error is not None
    assert found[0].label is None
    assert found[1].error is None
    assert len(found.unreadable) == 1
    with pytest.raises(VitreousError, match="image 0: a tensor of float32: expected uint8"):
        vitreous.predict("run", torch.zeros(3, 8, 8), quiet=True)
    for images, words in (([3], "expected a path, an image"), ([], "no images"), ("none.jpg", "no such file")):
        with pytest.raises(VitreousError, match=words):
            vitreous.predict("run", images, quiet=True)  # type: ignore[arg-type]
    with pytest.raises(VitreousError, match="sort_into copies files"):
        vitreous.predict("run", np.zeros((8, 8), np.uint8), sort_into=tmp_path / "sorted", quiet=True)
    assert not (tmp_path / "sorted").exists()


def test_compare_gives_the_json_of_the_command(tmp_path: Path) -> None:
    typed = ("--data", "colours", "--with", "knn", "--test-fraction", "0.3", *TINY)
    expected = printed_json("compare", "run", "other.safetensors", *typed)
    options: Any = {"methods": ["knn"], "test_fraction": 0.3, "workers": 0, "quiet": True}
    with pytest.warns(VitreousWarning):
        found = vitreous.compare(["run", "other.safetensors"], "colours", **options)
    assert as_json(found) == expected
    named = {"run": vitreous.load("run"), "other": vitreous.load("other.safetensors")}
    with pytest.warns(VitreousWarning):
        in_memory = vitreous.compare(named, ["colours"], out=tmp_path / "out", **options)
    assert as_json(in_memory)["rows"][0]["values"]["run"] == expected["rows"][0]["values"]["run"]
    assert in_memory.warnings == found.warnings
    assert (tmp_path / "out" / "comparison.png").is_file()
    assert repr(in_memory).startswith("| data | measure | run | other |")


def test_features_are_those_of_the_command(tmp_path: Path) -> None:
    typed = ("--model", "other.safetensors", "--split", "val", "--val-fraction", "0.2", *TINY)
    assert command.vitreous("features", "colours", tmp_path / "cli", *typed).returncode == 0
    model = vitreous.load("other.safetensors")
    options: Any = {"split": "val", "val_fraction": 0.2, "workers": 0, "quiet": True}
    written = vitreous.features("other.safetensors", "colours", tmp_path / "api", **options)
    found = vitreous.features(model, "colours", **options)
    for name in ("cli", "api"):
        shard = "features-00000.safetensors"
        assert (tmp_path / name / shard).read_bytes() == (tmp_path / "cli" / shard).read_bytes()
    assert torch.equal(found.features, written.features)
    assert found.names == written.names
    assert model.preprocessing is not None
    with torch.no_grad():
        expected = model.features(model.preprocessing(list(found.names)))
    torch.testing.assert_close(found.features, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(VitreousError, match="features of another model"):
        vitreous.features("run", "colours", tmp_path / "api", **options)


def test_info_gives_the_json_of_the_command() -> None:
    for name in ("run", "vitreous-mini"):
        expected = printed_json("info", name)
        assert as_json(vitreous.info(name)) == expected
        in_memory = as_json(vitreous.info(vitreous.load(name)))
        for key in ("config", "parameters", "flops", "preprocessing", "labels"):
            assert in_memory[key] == expected[key]
    with pytest.raises(VitreousError, match="image_size has an effect on checkpoints only"):
        vitreous.info(tiny_vit(), image_size=64)


def test_inspect_writes_the_files_of_the_command(tmp_path: Path) -> None:
    image = sorted(Path("colours", "rot").iterdir())[0]
    assert command.vitreous("inspect", "run", image, "--out", tmp_path / "cli", "--device", "cpu").returncode == 0
    found = vitreous.inspect(vitreous.load("run"), image, out=tmp_path / "api", quiet=True)
    assert found.page == tmp_path / "api" / "index.html"
    ours, theirs = (json.loads((tmp_path / name / "numbers.json").read_text()) for name in ("api", "cli"))
    assert ours == theirs
    array = np.array(Image.open(image))
    in_memory = vitreous.inspect("run", [array], out=tmp_path / "array", quiet=True)
    assert json.loads((in_memory.page.parent / "numbers.json").read_text())["images"][0]["answers"] == [
        *theirs["images"][0]["answers"]
    ]


# ---------------------------------------------------------------- models in memory


def doubled(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return 2 * output


def test_a_modified_model_runs_with_its_hooks_and_keeps_its_mode() -> None:
    """What the functions return is computed by the model's own code, and the model is left as it was."""
    paths = sorted(Path("colours", "rot").iterdir())[:3]
    model = vitreous.load("other.safetensors").train()
    model.blocks[1].eval()  # type: ignore[union-attr, operator]
    model.blocks[0].register_forward_hook(doubled)  # type: ignore[union-attr, operator]
    modes = [module.training for module in model.modules()]
    plain = vitreous.load("other.safetensors")
    plain.blocks[0].register_forward_hook(doubled)  # type: ignore[union-attr, operator]
    assert plain.preprocessing is not None
    with torch.no_grad():
        images = plain.preprocessing(paths)  # type: ignore[arg-type]
        truth, features = plain(images).softmax(1), plain.features(images)
    for one, row in zip(vitreous.predict(model, paths, quiet=True), truth, strict=True):
        assert one.probability == pytest.approx(row.max().item(), abs=1e-6)
    found = vitreous.features(model, "colours", split="all", workers=0, quiet=True)
    rows = [found.names.index(str(path)) for path in paths]
    torch.testing.assert_close(found.features[rows], features, rtol=1e-4, atol=1e-5)
    with pytest.warns(VitreousWarning, match="not known which images"):
        evaluated = vitreous.evaluate(model, "colours", split="all", workers=0, quiet=True)
    results = evaluated.scores[0].images
    assert results is not None
    predicted = {evaluated.source.name(int(i)): p for i, p in zip(results.indices, results.probability, strict=True)}  # type: ignore[union-attr]
    for path, row in zip(paths, truth, strict=True):
        assert predicted[str(path)] == pytest.approx(row.max().item(), abs=1e-6)
    assert [module.training for module in model.modules()] == modes


def test_what_is_assumed_of_a_model_in_memory_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    model, image = tiny_vit().double(), next(Path("colours", "rot").iterdir())
    found = vitreous.predict(model, image)
    assert [note.split(";")[0] for note in found.notes] == [
        "the model has no preprocessing (model.preprocessing)",
        "the weights of the model are float64, and it runs in this precision",
    ]
    printed = " ".join(capsys.readouterr().err.split())
    assert all(note in printed for note in found.notes)
    assert vitreous.predict(model, image, quiet=True).notes == found.notes
    assert not capsys.readouterr().err
    with torch.no_grad():
        truth = model(Preprocessing(32)(image)[None].double()).softmax(1)
    assert found[0].probability == pytest.approx(truth.max().item(), abs=1e-6)
    model.preprocessing = Preprocessing(32)
    features = vitreous.features(model, "colours", split="all", workers=0, quiet=True)
    assert features.notes == (found.notes[1],)


def test_models_that_cannot_run_are_refused() -> None:
    image = next(Path("colours", "rot").iterdir())
    with torch.device("meta"):
        meta = vitreous.VisionTransformer(tiny_vit().config)
    for model, options, words in (
        (3, {}, "predict: expected a model, or a path or name of one, got 3"),
        (nn.Linear(2, 2), {}, "predict: expected a model from vitreous.load or vitreous.create, got Linear"),
        (meta, {}, "meta device"),
        (tiny_vit(), {"heads": 3}, "heads = 3: for files that do not contain it"),
        (tiny_vit(), {"preprocessing": "deit"}, "a model in memory has model.preprocessing"),
        (tiny_vit(), {"device": "tpu"}, "device = 'tpu'"),
        ("missing.safetensors", {}, "missing.safetensors"),
        (tiny_vit(num_classes=0), {}, "the model has no head"),
    ):
        with pytest.raises(VitreousError, match=words):
            vitreous.predict(model, image, quiet=True, **options)  # type: ignore[arg-type]


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: vitreous.evaluate("run", "colours", batchsize=3),
            "no argument 'batchsize'; did you mean 'batch_size'",
        ),
        (lambda: vitreous.evaluate("run", "colours", val_fractions=0.1), "did you mean 'val_fraction'"),
        (lambda: vitreous.evaluate("run", "colours", batch_size="3"), "batch_size = '3': expected an integer"),
        (lambda: vitreous.evaluate("run", "colours", only_classes="rot"), "only_classes = 'rot': expected"),
        (lambda: vitreous.evaluate("run", "colours", precision="fp64"), "precision = 'fp64': expected one of 'fp32'"),
        (lambda: vitreous.evaluate("run", "colours", methods=["kmeans"]), "methods = "),
        (lambda: vitreous.evaluate("run"), "evaluate: missing a required argument: 'data'"),
        (lambda: vitreous.predict("run", "colours", tops=3), "predict has no argument 'tops'; did you mean 'top'"),
        (lambda: vitreous.predict("run", "colours", top=0), "top = 0: must be 1 or more"),
        (lambda: vitreous.compare("run", "colours", method=["knn"]), "did you mean 'methods'"),
        (lambda: vitreous.compare("run"), "give either data sets"),
        (lambda: vitreous.compare("run", [3]), "compare: data = 3: expected a path"),
        (lambda: vitreous.compare(3, "colours"), "compare: expected models, got 3"),
        (lambda: vitreous.features("run", "colours", layers=3), "did you mean 'layer'"),
        (lambda: vitreous.features("run", "colours", layer=99, quiet=True), "layer = 99: use 0 to 1"),
        (lambda: vitreous.inspect("run", output="x"), "inspect has no argument 'output'"),
        (lambda: vitreous.info("run", head=3), "did you mean 'heads'"),
    ],
)
def test_wrong_arguments(call: Any, words: str) -> None:
    with pytest.raises(VitreousError) as error:
        call()
    assert words in str(error.value)


def test_options_of_the_files_of_an_opened_data_set_are_refused() -> None:
    data = vitreous.open_data("colours")
    with pytest.raises(VitreousError, match="val_fraction: the data set is already open"):
        vitreous.evaluate("run", data, val_fraction=0.5)
    with pytest.warns(VitreousWarning):
        found, again = (vitreous.evaluate("run", one, workers=0, quiet=True) for one in (data, "colours"))
    assert found.data == "colours"
    assert found.result.top1 == again.result.top1


def test_results_are_readable_in_an_interactive_session() -> None:
    with pytest.warns(VitreousWarning):
        found = vitreous.evaluate("other.safetensors", "colours", workers=0, split="all", quiet=True)
    lines = repr(found).splitlines()
    assert lines[0] == "other on colours: all, 72 images"
    assert f"top-1 {found.result.top1:.2%}" in lines[1]
    assert any("WARNING" in line for line in lines)
    assert isinstance(found.evaluated, EvaluatedModel)
    predictions = repr(vitreous.predict("run", "colours", top=2, quiet=True)).splitlines()
    assert len(predictions) == 12
    assert predictions[-1] == "  and 62 more"
