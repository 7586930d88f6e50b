"""`reproduce figure7`: filters, position similarity and attention distance."""

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from inspection_runs import assert_redrawn, saved_model, values_of

from vitreous import load
from vitreous.data.open_data import open_data
from vitreous.experiments.experiment_result import ExperimentResult
from vitreous.experiments.figure7 import inspection_claims
from vitreous.experiments.grid.inspection_measures import axis_weights, patch_distances, spread_over_classes
from vitreous.experiments.grid.packed_values import pack_array, read_png_text, unpack_array
from vitreous.experiments.grid.permutation_tests import mantel_test, spearman_test, value_ranks, weighted_sum_test
from vitreous.experiments.reproduce import reproduce
from vitreous.inspection import attention_distance, embedding_filters, position_similarity
from vitreous.inspection.figures import filter_pixels
from vitreous.weights.model_info import preprocessing_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    return reproduce("figure7", out=tmp_path_factory.mktemp("figure7"), device="cpu", quiet=True)


def test_it_is_drawn_again_from_its_result(trained: ExperimentResult, tmp_path: Path) -> None:
    assert_redrawn(trained, tmp_path)


def test_the_verdict_states_its_rule(trained: ExperimentResult) -> None:
    assert trained.verdict.answer in ("yes", "no", "undecided")
    assert "Rule: yes if all four statements are supported" in trained.verdict.text
    assert len(trained.table.rows) == 5


def test_numbers_of_a_given_model(tmp_path: Path) -> None:
    path = saved_model(tmp_path / "given.safetensors", depth=3)
    result = reproduce("figure7", model=path, out=tmp_path / "out", device="cpu", quiet=True)
    found, model = values_of(result), load(path)

    filters = embedding_filters(model)
    assert len(found["filters"]["png"]) == 28
    for text, component in zip(found["filters"]["png"], filters.components, strict=True):
        np.testing.assert_allclose(read_png_text(text), filter_pixels(component), atol=0.003)
    assert found["filters"]["share"] == pytest.approx(float(filters.share.sum()), abs=1e-4)

    similarity = position_similarity(model).similarity
    np.testing.assert_allclose(unpack_array(found["positions"]["similarity"]), similarity, atol=6e-4)
    matrix, beside = similarity.reshape(16, 16).numpy(), ~np.eye(16, dtype=bool)
    expected = scipy.stats.spearmanr(matrix[beside], patch_distances((4, 4))[beside]).statistic
    assert found["positions"]["distance_test"]["statistic"] == pytest.approx(expected, abs=1e-4)

    test = open_data("digits").test
    assert test is not None
    chosen = spread_over_classes(test)[:128]
    batch = torch.stack([preprocessing_of(model)(test.image(index)) for index in chosen])
    distances = attention_distance(model, batch)
    np.testing.assert_allclose(unpack_array(found["distances"]["distance"]), distances.distance, atol=6e-3)
    assert found["distances"]["images"] == 128
    assert found["distances"]["uniform"] == pytest.approx(distances.largest, abs=6e-3)
    layers = np.arange(3).repeat(distances.distance.shape[1])
    expected = scipy.stats.spearmanr(layers, distances.distance.flatten()).statistic
    assert found["distances"]["depth_test"]["statistic"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        ("none", "no position embeddings"),
        ("relative", "relative position embeddings"),
        ("sincos-2d", "positions are fixed, not learned"),
    ],
)
def test_positions_that_are_not_learned(position: str, reason: str, tmp_path: Path) -> None:
    path = saved_model(tmp_path / "given.safetensors", position=position, class_token=False, pool="gap")
    result = reproduce("figure7", model=path, out=tmp_path / "out", device="cpu", quiet=True)
    assert ("similarity" in values_of(result)["positions"]) == (position == "sincos-2d")
    assert reason in result.verdict.text
    assert "does not apply" in result.verdict.text
    assert result.verdict.answer != "yes"
    assert_redrawn(result, tmp_path / "again")


def test_claims() -> None:
    def claims(correlation: float, p: float, lowest: float, depth: float) -> list[str]:
        test = {"p_above": 1 - p / 2, "p_below": p / 2}
        up = {"p_above": p / 2, "p_below": 1 - p / 2}
        positions = {
            "kind": "learned-1d",
            "distance_test": {"statistic": correlation, **test},
            "axis_test": {"statistic": -correlation, **up},
        }
        values = pack_array([[lowest, 1.0], *[[50.0, 60.0]] * 7], 2)
        distances = {"distance": values, "uniform": 100.0, "depth_test": {"statistic": depth, **up}}
        return [claim.answer for claim in inspection_claims(positions, distances)]

    assert claims(-0.6, 0.002, 80, 0.7) == ["yes", "yes", "yes", "yes"]
    assert claims(-0.6, 0.03, 80, 0.7) == ["undecided", "undecided", "yes", "undecided"]  # 0.03 > 0.05 / 3
    assert claims(0.6, 0.002, 74, -0.7) == ["no", "undecided", "no", "no"]
    assert inspection_claims(None, None) == []


# ---------------------------------------------------------------- statistics


def test_ranks_with_ties() -> None:
    values = np.random.default_rng(0).integers(0, 6, (4, 5))
    assert value_ranks(values).ravel().tolist() == scipy.stats.rankdata(values).tolist()


def test_exact_spearman_test() -> None:
    x, y = [1, 1, 2, 2, 3, 4], [2.0, 1, 3, 5, 4, 4]
    found = spearman_test(x, y)
    assert found.statistic == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    every = [scipy.stats.spearmanr(x, order).statistic for order in permutations(y)]
    assert found.p_above == pytest.approx(np.mean(np.array(every) >= found.statistic - 1e-9))
    assert found.p_below == pytest.approx(np.mean(np.array(every) <= found.statistic + 1e-9))
    assert found.p == pytest.approx(2 * found.p_above)


def test_random_spearman_test() -> None:
    random = np.random.default_rng(0)
    x = np.arange(12).repeat(3)
    y = x + random.normal(0, 12, 36)
    found = spearman_test(x, y)
    expected = scipy.stats.spearmanr(x, y, alternative="greater")
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.p_above == pytest.approx(expected.pvalue, abs=0.01)
    assert spearman_test(x, x).p_above == 1e-4  # the smallest that 9,999 random orders can give
    constant = spearman_test(x, np.ones(36))
    assert (constant.statistic, constant.p) == (0, 1)


def test_mantel_test() -> None:
    """Without any relation, p is uniform; with one it is small."""
    random, distance = np.random.default_rng(0), patch_distances((4, 4))
    values = []
    for _ in range(40):
        noise = random.normal(size=(16, 4))
        values.append(mantel_test(noise @ noise.T, distance, draws=99).p)
    assert 0.25 < np.mean(values) < 0.75
    assert sum(p <= 0.05 for p in values) <= 6
    related = mantel_test(np.exp(-distance), distance)
    assert related.statistic == pytest.approx(-1)
    assert related.p == 0.002
    assert mantel_test(np.ones((1, 1)), np.zeros((1, 1))).p == 1


def test_rows_and_columns() -> None:
    grid = (5, 6)
    weights, distance = axis_weights(grid), patch_distances(grid)
    assert weights.sum() == pytest.approx(0)
    # Similarity that depends only on the distance has no rows and columns; the patches compared with are nearer.
    assert weighted_sum_test(-distance, weights).statistic < 0
    rows, columns = np.indices(grid).reshape(2, -1)
    axis = (rows[:, None] == rows) * 1.0 + (columns[:, None] == columns)
    found = weighted_sum_test(axis, weights)
    assert found.statistic == pytest.approx(1)  # 1 in one row or column, 0 elsewhere
    assert found.p_above == 0.001
    assert not axis_weights((1, 4)).any()  # there is nothing to compare with
