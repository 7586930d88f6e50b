"""Compare the linear probe with scikit-learn's logistic regression: `python benchmarks/probe.py`

Features of vitreous-mini at 48 px: 6,000 training and 4,000 test images of Fashion-MNIST, three seeds. Both select
their hyperparameters on the same validation part of the training images and are then trained on all of it. Ours selects
learning rate and weight decay by the loss; scikit-learn selects among the same decays, without the two smallest, once
by the loss and once by accuracy.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import vitreous
from harness import RESULTS, argument_parser, environment, write_result
from vitreous.data.dataset import Source, Subset
from vitreous.evaluation.evaluated_model import open_model
from vitreous.evaluation.features import extract_features
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.measures import MeasureSettings, TrainTestFeatures, development_split, measure_features

DECAYS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-4)
Score = Callable[[Any, TrainTestFeatures], float]  # of a fitted LogisticRegression; higher is better


def train_and_test_features(train: int, test: int) -> TrainTestFeatures:
    subject, data = open_model("vitreous-mini"), vitreous.open_data("fashion-mnist")
    assert data.test is not None

    def first(source: Source, images: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = Subset(source, torch.arange(images))
        loader = InferenceOptions(batch_size=128).loader(part, subject.preprocessing(48), {})
        return extract_features(subject.model, loader)

    return TrainTestFeatures(*first(data.train, train), *first(data.test, test))


def standardise(rows: TrainTestFeatures) -> TrainTestFeatures:
    mean, std = rows.train.mean(0), rows.train.std(0, correction=0) + 1e-5
    train, test = (((part - mean) / std).double() for part in (rows.train, rows.test))
    return TrainTestFeatures(train, rows.train_labels, test, rows.test_labels)


def fit(rows: TrainTestFeatures, decay: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=1 / (decay * len(rows.train)), max_iter=2000).fit(rows.train, rows.train_labels)


def accuracy(model: Any, rows: TrainTestFeatures) -> float:
    return float(model.score(rows.test, rows.test_labels))


def log_likelihood(model: Any, rows: TrainTestFeatures) -> float:
    from sklearn.metrics import log_loss

    return -float(log_loss(rows.test_labels, model.predict_proba(rows.test)))


def scikit_learn_accuracies(rows: TrainTestFeatures, score: Score) -> list[float]:
    """Return the test accuracy for each seed, with the weight decay that has the best score on the validation part."""
    accuracies = []
    for seed in range(3):
        learn, validation = development_split(rows.train_labels, MeasureSettings(), seed)
        x, y = rows.train, rows.train_labels
        part = standardise(TrainTestFeatures(x[learn], y[learn], x[validation], y[validation]))
        best = max(DECAYS, key=lambda decay: score(fit(part, decay), part))
        whole = standardise(rows)
        accuracies.append(accuracy(fit(whole, best), whole))
    return accuracies


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "probe-cpu.json", help="JSON file")
    options = parser.parse_args()
    rows, results = train_and_test_features(6000, 4000), []
    probes: dict[str, Callable[[], list[float]]] = {
        "vitreous": lambda: list(measure_features("probe", rows, MeasureSettings())[0].each),
        "scikit-learn, chosen by loss": lambda: scikit_learn_accuracies(rows, log_likelihood),
        "scikit-learn, chosen by accuracy": lambda: scikit_learn_accuracies(rows, accuracy),
    }
    for name, run in probes.items():
        started = time.perf_counter()
        percent = [round(100 * share, 3) for share in run()]
        seconds = round(time.perf_counter() - started, 1)
        mean = round(statistics.fmean(percent), 3)
        results.append({"probe": name, "mean": mean, "each": percent, "seconds": seconds})
        print(results[-1], flush=True)
    write_result(options.out, {**environment("vitreous", "sklearn"), "rows": results})


if __name__ == "__main__":
    main()
