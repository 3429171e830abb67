"""Charts of predicted probabilities: precision by recall, ROC and calibration; and the table of rows by threshold."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from sarlite.cli.charts import Curve, LineChart
from sarlite.tasks.class_metrics import CALIBRATION_BINS
from sarlite.types import Array, JsonObject

THRESHOLDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


class ScoreCounts(NamedTuple):
    """Histogram of a split's rows by predicted probability, as `outcome_counts.score_counts` computes it. A bin is a range of
    probabilities.

    Attributes
    ----------
    edges : ndarray
        Ascending edges of the bins, shape (n_bins + 1,), float64.
    negative, positive : ndarray
        Number of negative and of positive rows in each bin, shape (n_bins,), float64.
    """

    edges: Array
    negative: Array
    positive: Array

    def above(self) -> tuple[Array, Array]:
        """Return (numbers of positive rows, numbers of negative rows), (n_bins,) each, counted from the highest probability down: entry i
        counts the rows in the i + 1 highest bins of the histogram.
        """
        return np.cumsum(self.positive[::-1]), np.cumsum(self.negative[::-1])


Outcome = JsonObject
"""Result of `train.outcome.outcome`, as it is in summary.json."""


def score_counts_of(outcome: Outcome) -> dict[str, ScoreCounts]:
    """Return {split: histogram of the predicted probabilities} from `outcome`, the entry of summary.json about a run's predictions.

    Raises
    ------
    ValueError, TypeError
        The entry "scores" is invalid.
    """
    scores = outcome.get("scores")
    if not scores:
        return {}
    edges = np.array(scores["edges"], np.float64)
    splits = {split: ScoreCounts(edges, *np.array(counts, np.float64)) for split, counts in scores["splits"].items()}
    for counts in splits.values():
        both = np.stack([counts.negative, counts.positive])
        if both.shape != (2, len(edges) - 1) or not (both >= 0).all() or not (np.diff(edges) > 0).all():
            raise ValueError("scores are not counts by bin")
    return splits


def score_charts(runs: Mapping[str, Outcome]) -> Iterator[str]:
    """Yield charts of predicted probabilities as HTML. `runs` maps each run's name to the entry of its summary.json about
    predictions. A colour stands for a run, a dash pattern for a split.
    """
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
            yield LineChart(title, curves, whole=False).html()


def precision_by_recall(counts: ScoreCounts) -> list[tuple[float, float]]:
    """Return a list of (recall, precision), one for each threshold, the highest first. The thresholds are the lower edges of the bins
    (ranges of probability) in the histogram `counts`.
    """
    true, false = counts.above()
    predicted = true + false > 0
    return [*zip((true[predicted] / max(true[-1], 1)).tolist(), (true[predicted] / (true + false)[predicted]).tolist())]


def roc(counts: ScoreCounts) -> list[tuple[float, float]]:
    """Return a list of (false positive rate, true positive rate): first (0, 0), then one for each threshold, the highest first. The
    thresholds are the lower edges of the bins (ranges of probability) in the histogram `counts`.
    """
    true, false = counts.above()
    return [(0.0, 0.0), *zip((false / max(false[-1], 1)).tolist(), (true / max(true[-1], 1)).tolist())]


def calibration(counts: ScoreCounts) -> list[tuple[float, float]]:
    """Join the bins (ranges of predicted probability) of the histogram `counts` to fewer, wider ranges. Return a list of (mean predicted
    probability, share of positive rows), one for each wider range with rows.
    """
    centres, rows = (counts.edges[1:] + counts.edges[:-1]) / 2, counts.negative + counts.positive
    bins = np.minimum((centres * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    n, sums, true = (np.bincount(bins, weights, CALIBRATION_BINS) for weights in (rows, rows * centres, counts.positive))
    filled = n > 0
    return [*zip((sums[filled] / n[filled]).tolist(), (true[filled] / n[filled]).tolist())]


def threshold_rows(outcome: Outcome) -> tuple[str, list[tuple[str | int, ...]]]:
    """Return (split, rows): first "val" or, without it, the first split in `outcome`; then the rows of a table, one for each threshold in
    `THRESHOLDS`, with counts such as true positives, precision, recall and F1.

    Returns
    -------
    split : str
        "val", or else the first split.
    rows : list of tuple
        For each of `THRESHOLDS`, rounded down to an edge of a bin: the threshold; the numbers of true positives, false
        positives, false negatives and true negatives; and precision, recall and F1.
    """
    splits = score_counts_of(outcome)
    split = "val" if "val" in splits else next(iter(splits))
    counts = splits[split]
    rows: list[tuple[str | int, ...]] = []
    for threshold in THRESHOLDS:
        at = int(np.searchsorted(counts.edges, threshold, "right")) - 1
        true, false = counts.positive[at:].sum(), counts.negative[at:].sum()
        missed, rest = counts.positive[:at].sum(), counts.negative[:at].sum()
        precision, recall = true / max(true + false, 1), true / max(true + missed, 1)
        f1 = 2 * true / max(2 * true + false + missed, 1)
        rows.append((f"{threshold:g}", *(int(n) for n in (true, false, missed, rest)),
                     *(f"{score:.4f}" for score in (precision, recall, f1))))
    return split, rows
