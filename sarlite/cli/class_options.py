"""Options whose values depend on the classes in the data: default metric, positive class and class weights."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from sarlite.cli.options import TrainingOptions
from sarlite.comm import Communicator
from sarlite.command import suggestion
from sarlite.errors import ConfigError
from sarlite.tape.row_index import row_numbers
from sarlite.tasks.class_losses import class_counts
from sarlite.tasks.loss_table import LOSSES, find_loss
from sarlite.tasks.metric_table import METRICS, find_metric
from sarlite.tasks.thresholds import threshold_rule
from sarlite.train.load import Shard

RARE = 0.1
"""Largest share of the training rows that a rare class may have. A rare one of n classes also has less than 0.5 / n."""


def check(training: TrainingOptions) -> None:
    """Raise a ConfigError if the metric, the loss, the threshold or the class weights in `training` are invalid for the task in `training`;
    without a task, if they are invalid for every task.
    """
    for name, table, find in (("loss", LOSSES, find_loss), ("metric", METRICS, find_metric)):
        word = getattr(training, name)
        if word is not None:
            _check_word(name, word, {training.task: table[training.task]} if training.task else table, find)
    if training.class_weights not in (None, "balanced"):
        _pairs(training.class_weights)
    threshold_rule(training.threshold)


def _check_word(option: str, word: str, known: Mapping[str, Iterable[str]], find: Callable[[str, str], object]) -> None:
    """Raise a ConfigError unless `word`, the value of `option`, is valid for at least one kind of targets. `known` is {kind: its known
    names}, such as {"classify": names of metrics}, and `find(kind, word)` raises a ConfigError for a word that is invalid for the kind.
    """
    errors = []
    for form, kinds in known.items():
        try:
            find(form, word)
            return
        except ConfigError as error:
            stems = {name.partition("@")[0] for name in kinds}
            errors += [error] if len(known) == 1 or word.partition("@")[0].partition(":")[0] in stems else []
    if errors:
        raise errors[0]
    choices = tuple(dict.fromkeys(name for kinds in known.values() for name in kinds))
    raise ConfigError(f"{option} {word!r} is not one of {', '.join(choices)}{suggestion(word, choices)}", option)


def _pairs(text):
    """Return the pairs (class name, weight) of a text such as "a:1,b:20"."""
    pairs = []
    for word in text.split(","):
        name, colon, number = word.rpartition(":")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not colon or not 0 < weight < float("inf"):
            raise ConfigError(f"class_weights {text!r}: {word!r} is not CLASS:WEIGHT with a weight above 0; the other choice "
                              "is balanced",
                              "class_weights")
        pairs.append((name, weight))
    return pairs


def of_data(comm: Communicator, training: TrainingOptions, part: Shard) -> tuple[TrainingOptions, list[str]]:
    """Complete the options `training` by the classes of the data `part`: class names become indices, and an unset metric becomes the
    default for these classes. Return (completed options, lines for the user about rare classes and the positive class). Collective.

    Parameters
    ----------
    comm : Communicator
    training : TrainingOptions
    part : load.Shard
        This rank's part of the data, with the targets of the run's task.

    Returns
    -------
    TrainingOptions
        `positive` is a class index. `class_weights` is "balanced" or a dict by class index. If a class is rare and no
        metric was given, `metric` is "ap" for two classes and "macro-f1" for more.
    list of str
        Lines for the user about rare classes and about the positive class.

    Raises
    ------
    ConfigError
        On every rank: a class name is not in the data, or an option is about classes and the task has none.

    Notes
    -----
    A class with at most `RARE` of the training rows is rare. A model that never predicts a rare class still has a high
    accuracy, so accuracy is not the default metric then.
    """
    form, names = part.task, part.class_names
    if form not in ("classify", "multilabel"):
        for name in ("class_weights", "positive", "threshold"):
            if getattr(training, name) not in (None, "0.5"):
                raise ConfigError(f"{name} {getattr(training, name)}: applies to classes and labels, but the task is {form}",
                                  name)
        return training, []
    n = part.n_classes
    if training.class_weights not in (None, "balanced"):
        weights = {_number(name, names, n, "class_weights"): weight for name, weight in _pairs(training.class_weights)}
        training = replace(training, class_weights=weights)
    if form == "multilabel" or n != 2:
        for name, value in (("positive", None), ("threshold", "0.5")):
            if getattr(training, name) != value and not (form == "multilabel" and name == "threshold"):
                raise ConfigError(f"{name} {getattr(training, name)}: applies to two classes, but there are {n} "
                                  f"{'labels' if form == 'multilabel' else 'classes'}", name)
    return (training, []) if form == "multilabel" else _of_classes(comm, training, part)


def _of_classes(comm, training, part):
    """Complete the options `training` by the classes of the data `part`: set the index of the positive class and, if a class is rare and no
    metric is set, a metric for rare classes. Return (completed options, lines for the user about the positive class and the metric).
    Collective.
    """
    rows = row_numbers("train", part.rows.train, part.graph.n_dst)
    counts = class_counts(comm, np.asarray(part.rows.labels), rows, part.n_classes)
    shares, n = counts / max(counts.sum(), 1), part.n_classes
    rare = np.flatnonzero((shares <= RARE) & (shares < 0.5 / n) & (counts > 0))
    names = part.class_names or [f"class {number}" for number in range(n)]
    lines = []
    if len(rare) and n > 1:
        listed = ", ".join(f"{names[k]} {100 * shares[k]:.2g} %" for k in rare[np.argsort(shares[rare])][:5])
        more = f" and {len(rare) - 5} more" if len(rare) > 5 else ""
        line = f"rare among the training rows: {listed}{more}"
        if training.metric is None:
            training = replace(training, metric="ap" if n == 2 else "macro-f1")
            line += f"; so the metric is {training.metric} (--metric accuracy is the share of correct rows)"
        lines.append(line)
    if n == 2:
        name = training.positive
        number = int(0 in rare) ^ 1 if name is None else _number(name, part.class_names, n, "positive")
        training = replace(training, positive=number)
        lines += [f"positive class: {names[number]}"] if len(rare) or name is not None else []
    return training, lines


def _number(class_name: str, names: list[str] | None, n: int, option: str) -> int:
    """Return the index of the class called `class_name` in the option `option`. `names` are the names of the n classes; without names
    (None), the classes are called "0", "1" and so on. The error for an unknown class begins with `option`.
    """
    class_names = names or [str(number) for number in range(n)]
    if class_name not in class_names:
        some = ", ".join(class_names[:10]) + (", ..." if len(class_names) > 10 else "")
        raise ConfigError(f"{option}: {class_name!r} is not a class of the data, which have {some}", option)
    return class_names.index(class_name)
