"""Charts of a model's probabilities from counts by bin: precision and recall, ROC, calibration, and rows by threshold."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from sarlite.cli.charts import Curve, Lines
from sarlite.tasks.class_metrics import CALIBRATION_BINS

THRESHOLDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


class ScoreCounts(NamedTuple):
    """Counts of a split's rows by bin of their probability, as `outcome_counts.score_counts` makes them.

    Attributes
    ----------
    edges : (n_bins + 1,) float64
        Ascending probabilities.
    negative, positive : (n_bins,) float64
    """

    edges: np.ndarray
    negative: np.ndarray
    positive: np.ndarray

    def above(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how many positive and negative rows lie above each inner edge and the lowest edge, descending."""
        return np.cumsum(self.positive[::-1]), np.cumsum(self.negative[::-1])


def score_counts_of(outcome: Mapping[str, Any]) -> dict[str, ScoreCounts]:
    """Return the counts of each split in a run's `outcome`; raise a ValueError or TypeError if these are no counts."""
    found = outcome.get("scores")
    if not found:
        return {}
    edges = np.array(found["edges"], np.float64)
    splits = {split: ScoreCounts(edges, *np.array(counts, np.float64)) for split, counts in found["splits"].items()}
    for counts in splits.values():
        whole = np.stack([counts.negative, counts.positive])
        if whole.shape != (2, len(edges) - 1) or not (whole >= 0).all() or not (np.diff(edges) > 0).all():
            raise ValueError("scores are no counts by bin")
    return splits


def score_charts(runs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the charts, as HTML, of runs' outcomes by name: colour means the run, and dash the split."""
    drawings = (
        ("precision by recall", precision_by_recall, True), ("ROC: true positives by false positives", roc, True),
        ("calibration: share of positives by probability", calibration, False),
    )
    for title, points, ranked in drawings:
        curves = []
        for run, outcome in runs.items():
            if not ranked or outcome.get("scores", {}).get("ranked"):
                curves += [Curve(run, split, drawn) for split, counts in score_counts_of(outcome).items()
                           if (drawn := points(counts))]
        if curves:
            yield Lines(title, curves, whole=False).html()


def precision_by_recall(counts: ScoreCounts) -> list[tuple[float, float]]:
    """Return (recall, precision) at each bin's lower edge, from the highest probability on."""
    true, false = counts.above()
    there = true + false > 0
    return [*zip((true[there] / max(true[-1], 1)).tolist(), (true[there] / (true + false)[there]).tolist())]


def roc(counts: ScoreCounts) -> list[tuple[float, float]]:
    """Return (share of negatives, share of positives) above each bin's lower edge."""
    true, false = counts.above()
    return [(0.0, 0.0), *zip((false / max(false[-1], 1)).tolist(), (true / max(true[-1], 1)).tolist())]


def calibration(counts: ScoreCounts) -> list[tuple[float, float]]:
    """Return (mean probability, share of positives) of each tenth of the probabilities that has rows."""
    centres, rows = (counts.edges[1:] + counts.edges[:-1]) / 2, counts.negative + counts.positive
    place = np.minimum((centres * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    n, sums, true = (np.bincount(place, weights, CALIBRATION_BINS) for weights in (rows, rows * centres,
                                                                                    counts.positive))
    there = n > 0
    return [*zip((sums[there] / n[there]).tolist(), (true[there] / n[there]).tolist())]


def threshold_rows(outcome: Mapping[str, Any]) -> tuple[str, list[tuple[Any, ...]]]:
    """Return the split, and a row for each of `THRESHOLDS`: true and false positives, false and true negatives, scores.

    The thresholds are rounded to the next lower edge of a bin. The split is the validation split, or else the first.
    """
    splits = score_counts_of(outcome)
    split = "val" if "val" in splits else next(iter(splits))
    counts = splits[split]
    rows: list[tuple[Any, ...]] = []
    for threshold in THRESHOLDS:
        at = int(np.searchsorted(counts.edges, threshold, "right")) - 1
        true, false = counts.positive[at:].sum(), counts.negative[at:].sum()
        missed, rest = counts.positive[:at].sum(), counts.negative[:at].sum()
        precision, recall = true / max(true + false, 1), true / max(true + missed, 1)
        f1 = 2 * true / max(2 * true + false + missed, 1)
        rows.append((f"{threshold:g}", *(int(n) for n in (true, false, missed, rest)),
                     *(f"{score:.4f}" for score in (precision, recall, f1))))
    return split, rows
