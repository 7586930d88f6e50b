"""Find flipped labels, compared with cleanlab: `python benchmarks/label_errors.py DATA ... --models MODEL ...`

For each data set and model: features of all images, then a share of the labels is replaced. `uniform`: by a random
other class. `confusable`: by the class that a classifier confuses most with the true one, which is harder. Both tools
get the same features and the same out-of-fold probabilities (5 folds, linear probe of Vitreous):

- vitreous: `vitreous data --check`: step 2 and 3 of vitreous.evaluation.label_errors.
- cleanlab, FILTER: cleanlab.filter.find_label_issues with the probabilities of step 1.
- cleanlab, FILTER, refitted: the same with the probabilities of step 2, after confident mistakes were left out.
- cleanlab, own pipeline: CleanLearning on the standardised features, with scikit-learn's logistic regression.

Precision: share of the reported images whose label was replaced. Recall: share of the replaced labels that are
reported. With rate 0, nothing is replaced, and the number of reported images is of interest; a few may be real errors.
Without cleanlab only Vitreous is measured: `pip install cleanlab`, if possible into a separate environment.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vitreous
from harness import RESULTS, argument_parser, environment, write_result
from vitreous.data.dataset import Subset
from vitreous.evaluation.evaluated_model import open_model
from vitreous.evaluation.features import extract_features
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.label_errors import confident_mistakes, estimate_label_errors
from vitreous.evaluation.metrics import average_precision
from vitreous.evaluation.out_of_fold import assign_folds, out_of_fold_probabilities, select_head

FILTERS = ("prune_by_noise_rate", "both", "confident_learning", "low_self_confidence", "low_normalized_margin")


def features_of(data: str, model: str, per_class: int) -> tuple[Tensor, Tensor]:
    """Return features and labels of the first images of each class, over all splits that are stored in `data`."""
    source = vitreous.open_data(data).stored_splits["train"]
    rows = torch.cat([(source.labels == i).nonzero()[:per_class, 0] for i in source.labels.unique()])
    evaluated = open_model(model)
    loader = InferenceOptions(workers=0).loader(Subset(source, rows), evaluated.preprocessing(), {})
    return extract_features(evaluated.model, loader)


def replace_labels(labels: Tensor, kind: str, rate: float, seed: int, nearest: Tensor) -> tuple[Tensor, Tensor]:
    """Return new labels, and which of them were replaced. `nearest`: for each class the one it is confused with."""
    generator = torch.Generator().manual_seed(seed)
    classes = int(labels.max()) + 1
    chosen = torch.randperm(len(labels), generator=generator)[: round(rate * len(labels))]
    shift = torch.randint(1, classes, (len(chosen),), generator=generator)
    result = labels.clone()
    result[chosen] = (labels[chosen] + shift) % classes if kind == "uniform" else nearest[labels[chosen]]
    return result, result != labels


def confused_classes(features: Tensor, labels: Tensor) -> Tensor:
    """Return, for each class, the other class with the highest mean out-of-fold probability."""
    classes = int(labels.max()) + 1
    fold = assign_folds(labels, torch.arange(len(labels)))
    head = select_head(features, labels, fold, classes)
    probabilities = out_of_fold_probabilities(features, labels, fold, head, classes)
    means = torch.stack([probabilities[labels == i].mean(0) for i in range(classes)])
    return means.fill_diagonal_(0).argmax(1)


def methods(features: Tensor, labels: Tensor, seed: int) -> Iterator[tuple[str, Tensor, Tensor, float]]:
    """Yield the name of a method, which images it reports, a score (higher: more suspicious), and its time in seconds
    without the out-of-fold predictions of step 1, which all but the last method share."""
    classes = int(labels.max()) + 1
    fold = assign_folds(labels, torch.arange(len(labels)), seed=seed)
    head = select_head(features, labels, fold, classes)
    first = out_of_fold_probabilities(features, labels, fold, head, classes)
    started = time.perf_counter()
    second = out_of_fold_probabilities(features, labels, fold, head, classes, keep=~confident_mistakes(first, labels))
    errors = estimate_label_errors(second, labels)
    yield "vitreous", errors.wrong > 0.5, errors.wrong, time.perf_counter() - started
    if "cleanlab" in sys.modules:
        yield from cleanlab_methods(features, labels, {"": first, ", refitted": second}, seed)


def cleanlab_methods(
    features: Tensor, labels: Tensor, predictions: dict[str, Tensor], seed: int
) -> Iterator[tuple[str, Tensor, Tensor, float]]:
    from cleanlab.classification import CleanLearning
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    given = labels.numpy()
    for suffix, probabilities in predictions.items():
        score = -torch.from_numpy(get_label_quality_scores(given, probabilities.numpy()))
        for name in FILTERS:
            started = time.perf_counter()
            found = find_label_issues(given, probabilities.numpy(), filter_by=name, n_jobs=1)
            yield f"cleanlab, {name}{suffix}", torch.from_numpy(found), score, time.perf_counter() - started
    started = time.perf_counter()
    standardised = ((features - features.mean(0)) / (features.std(0) + 1e-5)).numpy()
    table = CleanLearning(seed=seed, cv_n_folds=5, verbose=False).find_label_issues(standardised, given)
    found, score = (torch.from_numpy(table[name].to_numpy().copy()) for name in ("is_label_issue", "label_quality"))
    yield "cleanlab, own pipeline", found, -score, time.perf_counter() - started


def measure(data: str, model: str, kind: str, rate: float, options: Any, cached: tuple[Tensor, ...]) -> dict[str, Any]:
    features, labels, nearest = cached
    results: dict[str, list[dict[str, float]]] = {}
    for seed in options.seeds:
        given, replaced = replace_labels(labels, kind, rate, seed, nearest)
        for name, found, score, seconds in methods(features, given, seed):
            right = int((found & replaced).sum())
            row = {"reported": int(found.sum()), "seconds": seconds}
            if rate:
                ranking = float(average_precision(score[:, None].double(), replaced[:, None]))
                precision, recall = right / max(1, int(found.sum())), right / int(replaced.sum())
                row |= {"precision": precision, "recall": recall, "average_precision": ranking}
            results.setdefault(name, []).append(row)
    means = {
        name: {key: round(statistics.fmean(row[key] for row in rows), 3) for key in rows[0]}
        for name, rows in results.items()
    }
    setting = {"data": data, "model": model, "images": len(labels), "classes": int(labels.max()) + 1}
    return {**setting, "flips": kind, "rate": rate, "seeds": list(options.seeds), "methods": means}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("data", nargs="+", help="folders of photographs, one folder per class")
    parser.add_argument("--models", nargs="+", default=["vitreous-mini"], help="checkpoints for the features")
    parser.add_argument("--per-class", type=int, default=200, help="images of each class")
    parser.add_argument("--rates", nargs="+", type=float, default=[0.0, 0.05, 0.25], help="shares of replaced labels")
    parser.add_argument("--flips", nargs="+", default=["uniform", "confusable"], choices=["uniform", "confusable"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--notes", nargs="+", default=[], help="sentences for the result file, such as what was trained on"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "label-errors-cpu.json", help="JSON file")
    options = parser.parse_args()
    try:
        import cleanlab  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        print(f"without cleanlab ({error})")
    rows = []
    for data in options.data:
        for model in options.models:
            features, labels = features_of(data, model, options.per_class)
            cached = (features, labels, confused_classes(features, labels))
            for kind in options.flips:
                for rate in options.rates if kind == "uniform" else [rate for rate in options.rates if rate]:
                    rows.append(measure(data, model, kind, rate, options, cached))
                    print(rows[-1], flush=True)
    result = {**environment("vitreous", "cleanlab", "sklearn"), "notes": options.notes, "rows": rows}
    write_result(options.out, result)


if __name__ == "__main__":
    main()
