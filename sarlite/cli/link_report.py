"""Printed lines of a run on links: defaults that the metric implies, and a comparison of the model with popularity.

Popularity is a baseline that ranks destinations by their number of training links.
"""

from collections.abc import Iterator, Mapping

from sarlite.cli.link_options import LinkOptions
from sarlite.cli.options import TrainingOptions
from sarlite.tasks.link_task import RANKING_LOSS, is_ranked

_SPLITS = {"val": "validation", "test": "test"}
_REMEDY = ("recommending the destinations with the most links would be as good: more --epochs, more --negatives or another "
           "--lr may help, unless links depend on popularity alone")


def default_lines(training: TrainingOptions, requested: LinkOptions, used: LinkOptions) -> Iterator[str]:
    """Yield one line about the loss and the negatives that a run with a ranking metric uses because the user did not set them. `requested`
    has the options as the user set them, and `used` has the options of the run. Yield nothing for other metrics.

    Parameters
    ----------
    training : TrainingOptions
    requested : LinkOptions
        Options as the user gave them.
    used : LinkOptions
        Options of the run, with the defaults of the metric.
    """
    if training.task != "link" or not is_ranked(training.metric):
        return
    decided = [("loss", training.loss, f"loss {RANKING_LOSS}"),
               ("negatives", requested.negatives, f"{used.negatives} negatives of each link"),
               ("negative_sampler", requested.negative_sampler, f"drawn {used.negative_sampler}"),
               ("eval_negatives", requested.eval_negatives or requested.eval_negative_sampler,
                "links to validate and to test on are ranked among all destinations")]
    defaults = ", ".join(words for _, value, words in decided if value is None)
    if defaults:
        yield f"metric {training.metric} is about ranks, so by default: {defaults}"


Compared = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""Result of `link_outcome`: score by metric, by "model" or "popularity", and by split. The run's metric comes first."""


def popularity_rows(compared: Compared | None) -> Iterator[tuple[str, str]]:
    """Yield rows, (name, text), of the table printed after training, which compare the scores of the model and of the popularity
    baseline. `compared` None, without such a comparison, yields nothing.
    """
    if not compared:
        return
    metric, *others = compared
    yield "popularity", f"{_by_split(compared[metric]['popularity'])} (destinations ranked by their number of training links)"
    for split, words in _SPLITS.items():
        if others and compared[metric]["model"][split] is not None:
            numbers = ", ".join(f"{name} {_percent(compared[name]['model'][split])} ({_percent(compared[name]['popularity'][split])})"
                             for name in others)
            yield "ranking", f"{words}: {numbers}; in parentheses popularity"


def popularity_warnings(compared: Compared | None) -> Iterator[str]:
    """Yield a warning if the best model does not beat the popularity baseline in the run's metric. `compared` has the scores of both; None
    yields nothing.
    """
    for metric, scores in list((compared or {}).items())[:1]:
        beaten = [_SPLITS[split] for split, value in scores["model"].items()
                  if value is not None and not value > (scores["popularity"][split] or 0.0)]
        if beaten:
            yield f"the best model does not beat popularity in {metric} of {' and '.join(beaten)}: {_REMEDY}"


def _by_split(values):
    return ", ".join(f"{words} {_percent(values[split])}" for split, words in _SPLITS.items())


def _percent(value):
    return "-" if value is None else f"{100 * value:.2f} %"
