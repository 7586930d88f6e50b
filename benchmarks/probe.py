"""The linear probe beside scikit-learn's logistic regression: `python benchmarks/probe.py`.

On features of vitreous-mini at 48 px: 6,000 training images of Fashion-MNIST and 4,000 for testing. Both choose by the
same held-out training images, for three seeds, and are then trained on all: ours among its rates and decays by the
loss, scikit-learn among the same decays (but for the two smallest) once by the loss and once by accuracy.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import vitreous
from harness import RESULTS, environment, write
from vitreous.data.dataset import Source, Subset
from vitreous.evaluation.features import features
from vitreous.evaluation.measures import Bank, Settings, learn_and_judge, measure
from vitreous.evaluation.subject import Loading, open_subject

DECAYS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-4)
Judge = Callable[[LogisticRegression, Bank], float]


def bank(train: int, test: int) -> Bank:
    subject, data = open_subject("vitreous-mini"), vitreous.open_data("fashion-mnist")
    assert data.test is not None

    def some(source: Source, images: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = Subset(source, torch.arange(images))
        return features(subject.model, Loading(batch_size=128).loader(part, subject.shown(48), {}))

    return Bank(*some(data.train, train), *some(data.test, test))


def standardised(held: Bank) -> Bank:
    mean, std = held.train.mean(0), held.train.std(0, correction=0) + 1e-5
    train, test = (((part - mean) / std).double() for part in (held.train, held.test))
    return Bank(train, held.train_labels, test, held.test_labels)


def fitted(held: Bank, decay: float) -> LogisticRegression:
    return LogisticRegression(C=1 / (decay * len(held.train)), max_iter=2000).fit(held.train, held.train_labels)


def accuracy(model: LogisticRegression, held: Bank) -> float:
    return float(model.score(held.test, held.test_labels))


def likelihood(model: LogisticRegression, held: Bank) -> float:
    return -float(log_loss(held.test_labels, model.predict_proba(held.test)))


def theirs(held: Bank, judge: Judge) -> list[float]:
    shares = []
    for seed in range(3):
        learn, aside = learn_and_judge(held.train_labels, Settings(), seed)
        rows, labels = held.train, held.train_labels
        part = standardised(Bank(rows[learn], labels[learn], rows[aside], labels[aside]))
        best = max(DECAYS, key=lambda decay: judge(fitted(part, decay), part))
        whole = standardised(held)
        shares.append(accuracy(fitted(whole, best), whole))
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "probe-cpu.json")
    options = parser.parse_args()
    held, rows = bank(6000, 4000), []
    takers: dict[str, Callable[[], list[float]]] = {
        "vitreous": lambda: list(measure("probe", held, Settings())[0].each),
        "scikit-learn, chosen by loss": lambda: theirs(held, likelihood),
        "scikit-learn, chosen by accuracy": lambda: theirs(held, accuracy),
    }
    for name, take in takers.items():
        started = time.perf_counter()
        shares = take()
        percent = [round(100 * share, 3) for share in shares]
        seconds = round(time.perf_counter() - started, 1)
        rows.append({"probe": name, "mean": round(statistics.fmean(percent), 3), "each": percent, "seconds": seconds})
        print(rows[-1], flush=True)
    write(options.out, {**environment("vitreous", "sklearn"), "rows": rows})


if __name__ == "__main__":
    main()
