"""Lines of a run on links: what follows from the metric, and the best model's metrics beside popularity's."""

from collections.abc import Iterator
from typing import Any

from sarlite.cli.link_options import LinkOptions
from sarlite.cli.options import TrainingOptions
from sarlite.tasks.link_task import RANKING_LOSS, is_ranked

_SPLITS = {"val": "validation", "test": "test"}
_REMEDY = ("recommending the destinations with the most links would do as well: more --epochs, more --negatives or another "
           "--lr may help, or the links show no taste of their own")


def default_lines(training: TrainingOptions, given: LinkOptions, used: LinkOptions) -> Iterator[str]:
    """Yield a line on the defaults of a metric of ranks; none for other metrics, or if options give everything."""
    if training.task != "link" or not is_ranked(training.metric):
        return
    decided = [("loss", training.loss, f"loss {RANKING_LOSS}"),
               ("negatives", given.negatives, f"{used.negatives} negatives of each link"),
               ("negative_sampler", given.negative_sampler, f"drawn {used.negative_sampler}"),
               ("eval_negatives", given.eval_negatives or given.eval_negative_sampler,
                "links to validate and to test on are ranked among all destinations")]
    defaults = ", ".join(words for _, value, words in decided if value is None)
    if defaults:
        yield f"metric {training.metric} is about ranks, so by default: {defaults}"


def popularity_rows(compared: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield the rows of popularity and of further metrics, from the result of `link_outcome`."""
    if not compared:
        return
    metric, *others = compared
    yield "popularity", f"{_by_split(compared[metric]['popularity'])} (destinations by their number of training links)"
    for split, words in _SPLITS.items():
        if others and compared[metric]["model"][split] is not None:
            numbers = ", ".join(f"{name} {_percent(compared[name]['model'][split])} ({_percent(compared[name]['popularity'][split])})"
                             for name in others)
            yield "ranking", f"{words}: {numbers}; in parentheses popularity"


def popularity_warnings(compared: dict[str, Any] | None) -> Iterator[str]:
    """Yield a warning if the best model does not beat popularity in the run's metric."""
    for metric, scores in list((compared or {}).items())[:1]:
        beaten = [_SPLITS[split] for split, value in scores["model"].items()
                  if value is not None and not value > scores["popularity"][split]]
        if beaten:
            yield f"the best model does not beat popularity in {metric} of {' and '.join(beaten)}: {_REMEDY}"


def _by_split(values):
    return ", ".join(f"{words} {_percent(values[split])}" for split, words in _SPLITS.items())


def _percent(value):
    return "-" if value is None else f"{100 * value:.2f} %"
