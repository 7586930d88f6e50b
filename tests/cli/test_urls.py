"""A URL where a file is expected is an error that shows the URL with both slashes, and no file is written."""

from collections.abc import Callable
from pathlib import Path

import pytest

import vitreous
from helpers import tiny_vit
from vitreous import VitreousError
from vitreous.cli import main
from vitreous.data.image_files import find_images

URL = "https://example.com/x.safetensors"
COMMANDS = (
    ("predict", URL),
    ("predict", "photo.png", "--model", URL),
    ("info", URL),
    ("convert", URL, "out.safetensors", "--to", "native"),
    ("convert", "vitreous-mini", URL, "--to", "native"),
    ("data", URL),
    ("data", "digits", f"--sheet={URL}"),
    ("train", URL),
    ("train", "digits", "--from", URL),
    ("train", "digits", "--out", URL),
    ("train", "--resume", URL),
    ("evaluate", URL, "--model", "vitreous-mini"),
    ("features", "digits", URL, "--model", "vitreous-mini"),
    ("inspect", URL),
    ("inspect", "vitreous-mini", "--out", URL),
    ("compare", "vitreous-mini", "--suite", URL),
    ("bench", "--model", URL),
)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:3]))
@pytest.mark.usefixtures("empty_folder")
def test_on_the_command_line(command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(command)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"vitreous: {URL}: this is a URL")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "call",
    [
        vitreous.load,
        lambda url: vitreous.save(tiny_vit(), url),
        lambda url: vitreous.convert("vitreous-mini", url, "native"),
        vitreous.open_data,
        lambda url: find_images([url]),
        lambda url: vitreous.train("digits", out=str(url)),
    ],
)
@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.usefixtures("empty_folder")
def test_in_python(call: Callable[[str | Path], object], kind: Callable[[str], str | Path], tmp_path: Path) -> None:
    """Also as a Path, which removes one of the slashes."""
    with pytest.raises(VitreousError, match=f"{URL}: this is a URL"):
        call(kind(URL))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("empty_folder")
def test_an_existing_path_that_looks_like_a_url() -> None:
    Path("https:/example.com").mkdir(parents=True)
    vitreous.save(tiny_vit(), "model.safetensors")
    Path("model.safetensors").rename("https:/example.com/x.safetensors")
    assert vitreous.load(URL).config.width == 48
