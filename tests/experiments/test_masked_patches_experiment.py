"""masked-patches: its cells, and verdicts on made-up results. test_reproduce.py runs it at scale tiny."""

import pytest

from vitreous.experiments.grid.experiment import CellRecord
from vitreous.experiments.grid.records import CellRecords
from vitreous.experiments.grid.settings import Setting
from vitreous.experiments.masked_patches import EXPERIMENT, MASKED, SCRATCH, SUPERVISED, TUNED, VARIANTS

SETTING = Setting("small", "a.npz", ("b.npz",), seeds=2, classes=("x", "y"), unseen=("z", "w"))


def test_only_the_objective_differs_between_the_pre_trainings() -> None:
    cells = [cell for cell in EXPERIMENT.cells(SETTING) if cell.factors["stage"] == "pre-training" and cell.seed == 0]
    configs = {cell.factors["pre-training"]: cell.config.flat() for cell in cells if cell.config is not None}
    assert set(configs) == {SUPERVISED, *VARIANTS}
    for name in VARIANTS:
        different = {field for field, value in configs[name].items() if value != configs[SUPERVISED][field]}
        assert different <= {"objective", "patch_target", "mask_ratio", "loss", "label_smoothing", "class_weights"}
        assert configs[name]["objective"] == "masked-patches"
        assert configs[name]["patch_size"] % 4 == 0
        assert configs[name]["image_size"] % configs[name]["patch_size"] == 0


def test_every_pre_training_is_fine_tuned_on_the_transfer_data_and_one_run_starts_from_scratch() -> None:
    tuned = [cell for cell in EXPERIMENT.cells(SETTING) if cell.factors["stage"] == "fine-tuning"]
    assert len(tuned) == 2 * (len(VARIANTS) + 2)
    assert {cell.data for cell in tuned} == {"b.npz"}
    for cell in tuned:
        start = None if cell.start is None else cell.start.factors["pre-training"]
        assert cell.factors["pre-training"] == (SCRATCH if start is None else start)
        assert cell.start is None or cell.start.seed == cell.seed
        assert cell.config is not None
        assert not cell.config.reading.only_classes


def records(scratch: float, masked: float, supervised: float) -> CellRecords:
    noise = (0.0, 0.1, -0.1, 0.05)
    values = {SCRATCH: scratch, MASKED: masked, SUPERVISED: supervised}
    cells = [
        CellRecord({"stage": "fine-tuning", "pre-training": name}, seed, {TUNED: value + shift * place})
        for place, (name, value) in enumerate(values.items(), 1)
        for seed, shift in enumerate(noise)
    ]
    return CellRecords("small", tuple(cells))


@pytest.mark.parametrize(
    ("values", "answer"),
    [((70, 75, 80), "yes"), ((75, 70, 80), "no"), ((70, 80, 75), "no"), ((70, 70, 70), "undecided")],
)
def test_the_verdict_follows_the_paired_tests(values: tuple[float, float, float], answer: str) -> None:
    assert EXPERIMENT.verdict(records(*values)).answer == answer
