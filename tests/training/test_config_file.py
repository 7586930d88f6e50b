"""Config files: reading, mistakes, order of precedence, and files that are written and give the same run."""

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vitreous
from command import Done
from command import vitreous as cli
from runs import TINY, draw_folder
from vitreous import TrainConfig, VitreousError
from vitreous.training.config_file import config_toml, read_config_file

DIGITS: dict[str, Any] = {**TINY, "image_size": 8, "patch_size": 2, "width": 16, "mlp_dim": 32, "depth": 1}
FLAGS = [part for name, value in DIGITS.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr = 1e-3", {"lr": 1e-3}),
        ("lr = 1", {"lr": 1.0}),
        ("[optimiser]\nlr = 1e-3\noptimiser = 'sgd'", {"lr": 1e-3, "optimiser": "sgd"}),
        ("optimiser.lr = 1e-3", {"lr": 1e-3}),
        ("optimiser = 'sgd'", {"optimiser": "sgd"}),
        ("[schedule]\nlr = 1e-3", {"lr": 1e-3}),  # names are unique: the table does not matter
        ("batch-size = 8\nfrom = 'none'\nepochs = 30\nsize = [8, 16]", {}),
        ("clip = 'none'", {"clip": None}),
        ("evaluate_every = 'None'", {"evaluate_every": None}),
        ("start = 'none'\nposition = 'none'\nclass_weights = 'none'", {"start": "none", "position": "none"}),
        ("wandb = 'none'", {"wandb": "none"}),  # a project may have this name
        ("lr_candidates = [1e-3, 1]\nbetas = [0.9, 0.99]", {"lr_candidates": (1e-3, 1.0), "betas": (0.9, 0.99)}),
        ("\ufefflr = 1e-3\r\nseed = 3\r\n", {"lr": 1e-3, "seed": 3}),
    ],
)
def test_values(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    if "epochs" in text:
        expected = {"batch_size": 8, "start": "none", "duration": "30 epochs", "image_size": (8, 16)}
    found = read_config_file(write(tmp_path, text))
    assert expected.items() <= found.fields.items()
    assert TrainConfig.from_toml(found.path) == TrainConfig().with_(**found.fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "seed = 1\n[optimiser]\nlrr = 1",
            "run.toml, line 3: unknown setting 'lrr' in [optimiser]; did you mean 'lr'?",
        ),
        ("[optimizer]\nlr = 1", "run.toml, line 1: unknown setting 'optimizer'; did you mean 'optimiser'?"),
        ("# lr = 1\nlr = 'fast'", "run.toml, line 2: lr = 'fast': expected a number or \"none\""),
        ("[optimiser]\n\n lr = true", "run.toml, line 3: lr = True: expected a number"),
        ("batch_size = 8.5", "line 1: batch_size = 8.5: expected an integer"),
        ("freeze = 'head.*'", "line 1: freeze = 'head.*': expected a list in which each item is a string"),
        ("seed = 1979-05-27", "line 1: seed = "),
        ("[optimiser.lr]\nx = 1", "lr = {'x': 1}: expected a number"),
        ("lr = 1\n\n[optimiser]\nlr = 2", "lr is given twice"),
        ("epochs = 3\nduration = '3 epochs'", "line 2: duration is given twice"),
        ("[schedule]\ndata = 'digits'", "line 2: data belongs to the top of the file"),
        ("data = 3", "line 1: data = 3: expected a string"),
        ("[grid]\nlr = [1, 2]", "line 1: [grid] is for `vitreous sweep`"),
        ("lr = \n", "run.toml: cannot be read: it is not valid TOML: Invalid value (at line 1, column 6)"),
        ("a = 1\na = 2", "Cannot overwrite a value (at"),
        ("x = " + "[" * 100_000, "is not valid TOML"),
        ("seed = " + "9" * 5_000, "is not valid TOML"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(VitreousError) as raised:
        read_config_file(write(tmp_path, text))
    assert message in str(raised.value)


def test_files_that_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "latin1").write_bytes('seed = 1\nout = "gr\xfcn"\n'.encode("latin-1"))
    for name, message in {
        "pipe": "is a named pipe (FIFO)",
        "large": "has 1,073,741,824 bytes, and the limit is 1,000,000",
        "gone": "cannot be read (No such file or directory)",
        "latin1": "line 2 is not UTF-8 text",
        ".": "is a folder",
    }.items():
        with pytest.raises(VitreousError) as raised:
            TrainConfig.from_toml(tmp_path / name)
        assert message in str(raised.value)


# ---------------------------------------------------------------- writing

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text.casefold() != "none")
CONFIGS = st.builds(
    lambda **fields: TrainConfig().with_(**fields),
    start=st.none() | TEXT,
    data_dir=st.none() | TEXT,
    only_classes=st.lists(TEXT, max_size=3),
    image_size=st.none() | st.integers(1, 999) | st.tuples(st.integers(1, 999), st.integers(1, 999)),
    lr=st.none() | st.floats(1e-12, 1e12),
    clip=st.none() | st.floats(0, exclude_min=True),
    lr_candidates=st.none() | st.lists(st.floats(0, 1), max_size=3),
    flip=st.none() | st.booleans(),
    position=st.sampled_from([None, "none", "relative"]),
    seed=st.integers(0, 2**62),
)


@given(config=CONFIGS, data=st.none() | TEXT, ascii_only=st.booleans())
@settings(max_examples=60, deadline=None)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, config: TrainConfig, data: str, ascii_only: bool) -> None:
    """Quotes, backslashes, control characters and other scripts; None; tuples; extreme numbers."""
    header = ('data "\n\x1b[31m\\', "second\rline = 1")
    text = config_toml(config, data, header=header, ascii_only=ascii_only)
    assert text.isascii() or not ascii_only
    assert all(line.isprintable() for line in text.split("\n"))
    file = read_config_file(write(tmp_path_factory.mktemp("toml"), text))
    assert (file.config(), file.data) == (config, data)


def test_a_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(VitreousError, match="start: a name that is not UTF-8 text"):
        config_toml(TrainConfig().with_(start="\udcff.npz"))


# ---------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images with a strange name, and a run that its flags describe."""
    place = tmp_path_factory.mktemp("config")
    draw_folder(place / 'p"h\\ötos', images=24, side=24)
    run(place, "train", "digits", *FLAGS, "--clip", "None", "--out", "flags")
    return place


def run(cwd: Path, *arguments: object, code: int = 0) -> Done:
    done = cli(*arguments, cwd=cwd)
    assert done.returncode == code, done.stderr
    return done


def weights(run: Path) -> bytes:
    return (run / "last.safetensors").read_bytes()


def test_a_printed_config_gives_the_same_run(place: Path) -> None:
    printed = run(place, "train", "digits", *FLAGS, "--clip", "None", "--print-config").stdout
    assert tomllib.loads(printed)["optimiser"]["clip"] == "none"
    assert "weight_decay = 0.05  # chosen: usual for adamw" in printed
    write(place, printed)
    run(place, "train", "--config", "run.toml", "--out", "file")
    assert weights(place / "file") == weights(place / "flags")
    vitreous.train(config=place / "run.toml", out=place / "python", quiet=True)
    assert weights(place / "python") == weights(place / "flags")
    run(place, "train", "--config", "run.toml", "--seed", 1, "--out", "other")
    assert weights(place / "other") != weights(place / "flags")


def test_all_choices_are_stable(place: Path) -> None:
    """Settings that a config file fixes lead to the same settings: default weights, no validation images, a search."""
    photos = str(place / 'p"h\\ötos')
    cases: list[dict[str, Any]] = [
        {**{name: value for name, value in TINY.items() if name != "duration"}, "budget": "6s"},
        {"duration": "2 epochs", "val_fraction": 0, "test_fraction": 0},
        {"duration": "2 epochs", "start": "none", "image_size": (24, 16)},
        {"start": "vitreous-mini", "rules": "paper"},
        {"start": "vitreous-mini", "lr_candidates": (1e-3, 1e-2), "duration": "3 epochs", "lora": 4},
        {"model": "BiT-R26x1", "width_factor": 0.5, "image_size": 32, "duration": "1 epoch", "clip": None},
    ]
    for fields in cases:
        chosen = vitreous.choose_config(photos, quiet=True, **{"device": "cpu", **fields})
        path = write(place, chosen.to_toml())
        again = vitreous.choose_config(config=path, quiet=True)
        assert again.config == chosen.config, fields
        assert set(again.reasons) <= {"best_by"}
        assert again.data == photos
        chosen.save(path)
        assert path.read_text(encoding="utf-8") == chosen.to_toml()


def test_flags_override_the_file_which_overrides_the_recipe(place: Path) -> None:
    write(place, 'recipe = "digits"\nlr = 0.5\nbatch_size = 7\n')
    recipe = vitreous.recipe("digits").flat()

    def printed(*flags: object) -> dict[str, Any]:
        text = run(place, "train", "--config", "run.toml", *flags, "--print-config").stdout
        return {name: value for table in tomllib.loads(text).values() for name, value in table.items()}

    found = printed("--batch-size", 9)
    assert (found["lr"], found["batch_size"], found["duration"]) == (0.5, 9, recipe["duration"])
    other = printed("--recipe", "cifar10")
    assert (other["lr"], other["duration"]) == (0.5, vitreous.recipe("cifar10").schedule.duration)


def test_finetune_takes_a_config_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    write(place, 'recipe = "linear"\nfrom = "vitreous-mini"\nlr = 0.5\n')
    file = place / "run.toml"
    printed = run(place, "finetune", 'p"h\\ötos', "--config", file, "--epochs", "2 steps", "--print-config").stdout
    tables = tomllib.loads(printed)
    assert (tables["architecture"]["start"], tables["optimiser"]["lr"]) == ("vitreous-mini", 0.5)
    assert tables["optimiser"]["freeze"] == ["!head.*"]
    write(place, printed)
    first = vitreous.finetune(config=file, out=place / "tuned", device="cpu", batch_size=16, quiet=True)
    write(
        place,
        'data = "p\\"h\\\\ötos"\nfrom = "vitreous-mini"\nlr = 0.5\nepochs = "2 steps"\n'
        'batch_size = 16\nrecipe = "linear"\n',
    )
    run(place, "finetune", "--config", file, "--out", "again", "--device", "cpu")
    assert weights(place / "again") == weights(first.run)


def test_without_data_the_defaults_are_printed(place: Path) -> None:
    printed = run(place, "train", "--lr", 0.5, "--print-config").stdout
    assert "settings that are not set are chosen from the data" in printed
    assert read_config_file(write(place, printed)).config() == TrainConfig().with_(lr=0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--config", "run.toml"), "DATA is missing"),
        (("digits", "--config", "run.toml", "--config", "run.toml"), "--config is given twice"),
        (("--resume", "flags", "--config", "run.toml"), "--config and --resume exclude each other"),
        (("--resume", "flags", "--print-config"), "--print-config and --resume exclude each other"),
        (("digits", "--config", "gone.toml"), "gone.toml: cannot be read"),
        (("digits", "--print-config", "--lr", "-1", *FLAGS), "lr = -1.0"),
    ],
)
def test_mistakes_on_the_command_line(place: Path, arguments: tuple[str, ...], message: str) -> None:
    write(place, "seed = 1\n")
    before = sorted(place.iterdir())
    assert message in run(place, "train", *arguments, code=2).stderr
    assert sorted(place.iterdir()) == before
