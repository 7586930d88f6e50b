"""Progressive training: the image size of each step, and the images of the model."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import relative_error
from runs import config, records
from vitreous import VitreousError, open_data, train
from vitreous.data.loading import BatchCropper, resize_batch
from vitreous.models import checks
from vitreous.models.drop import keyed_drops
from vitreous.training.distributed import World
from vitreous.training.engine import compile_blocks, run_eagerly
from vitreous.training.loaders import build_loaders
from vitreous.training.plan import Plan, make_plan
from vitreous.utils.progress import ProgressReporter


def planned(folder: Path, **changes: Any) -> Plan:
    return make_plan(open_data(folder), config(Path(), **changes), World())


def test_image_size_by_step(folder: Path) -> None:
    plan = planned(folder, duration="20 steps", progressive=("8@25%", "12@4 steps"))
    assert [plan.size_at(step) for step in (0, 4, 5, 8, 9, 19)] == [(8, 8), (8, 8), (12, 12), (12, 12), None, None]
    assert planned(folder).size_at(0) is None


def test_rectangles_keep_their_aspect_ratio(folder: Path) -> None:
    plan = planned(folder, image_size=(16, 32), progressive=("8@25%",))
    assert plan.size_at(0) == (8, 16)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (("8",), "progressive = '8': expected PX@DURATION, such as 24@50%"),
        (("x@5%",), "progressive = 'x@5%': expected PX@DURATION"),
        (("8@five",), "progressive = 'five'"),
        (("16@5%",), "progressive = '16@5%': expected a size smaller than the model's, 16 px"),
        (("0@5%",), "expected a size smaller than the model's, 16 px"),
        (("10@5%",), "progressive = '10@5%': an image of 10 x 10 px cannot be divided into patches of 4 x 4"),
        (("8@60%", "12@40%"), "progressive = '8@60% 12@40%': no steps are left for the full size, 16 px"),
    ],
)
def test_invalid_stages(folder: Path, stages: tuple[str, ...], message: str) -> None:
    with pytest.raises(VitreousError) as caught:
        planned(folder, progressive=stages)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "reading", [{"cache": "always", "crop": 0.5}, {"cache": "always", "crop": 1.0}, {"cache": "never", "crop": 0.5}]
)
def test_smaller_images_have_the_same_crop(folder: Path, reading: dict[str, Any]) -> None:
    """For all ways to load images: cached and cropped, cached without crops, and decoded by workers."""
    plan = planned(folder, **reading, workers=0)
    loaders = build_loaders(open_data(folder), plan, World(), ProgressReporter(quiet=True))
    batch = next(loaders.train.batches(0, 1))
    cut: BatchCropper = loaders.train.cropper
    full = cut(batch.rows, batch.keys).float()
    small = cut(batch.rows, batch.keys, (8, 8)).float()
    assert full.shape[2:] == (16, 16)
    assert small.shape[2:] == (8, 8)
    expected = F.interpolate(full, (8, 8), mode="bilinear", antialias=True)
    here, elsewhere = ((small - other).abs().mean() for other in (expected, expected.roll(1, dims=3)))
    assert here < 8  # of 255; resampling once or twice is not exactly the same
    assert elsewhere > 2 * here
    assert torch.equal(cut(batch.rows, batch.keys, (16, 16)).float(), full)


def test_resize_to_the_same_size_is_a_no_op() -> None:
    pixels = torch.arange(48, dtype=torch.uint8).view(1, 3, 4, 4)
    assert resize_batch(pixels, (4, 4)) is pixels
    assert resize_batch(pixels, (2, 2)).shape == (1, 3, 2, 2)


def test_model_is_trained_on_each_size_in_turn(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int] = []
    check_images = checks.check_images

    def watched(images: Tensor, *arguments: Any, **options: Any) -> None:
        if torch.is_grad_enabled():
            shown.append(images.shape[2])
        check_images(images, *arguments, **options)

    monkeypatch.setattr("vitreous.models.vit.check_images", watched)
    settings = config(tmp_path / "run", duration="6 steps", progressive=("8@2 steps", "12@1 steps"), workers=0)
    outcome = train(folder, settings, quiet=True)
    assert shown == [8, 8, 12, 16, 16, 16]
    assert outcome.result is not None
    assert records(tmp_path / "run", "train")[-1]["step"] == 6


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of torch, while it compiles
def test_all_blocks_share_one_compiled_graph() -> None:
    """Blocks differ in weights and stochastic depth, and neither needs another compilation."""
    from vitreous import create
    from vitreous.utils import random_keys

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = create("Ti/16", image_size=16, patch_size=8, width=32, depth=4, heads=2, mlp_dim=64, stochastic_depth=0.5)
    model.train()
    torch.nn.init.normal_(model.head.weight)
    images, keys = torch.randn(4, 3, 16, 16), random_keys.keys(0, torch.arange(4))
    found = []
    for run in (run_eagerly(model), compile_blocks(model), model, run_eagerly(model)):
        model.zero_grad()
        with keyed_drops(model, keys):
            run(images).square().sum().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for name, gradient in found[0].items():
        assert relative_error(found[1][name], gradient) < 1e-4, name
        assert torch.equal(found[1][name], found[2][name]), name
        assert torch.equal(gradient, found[3][name]), name
