"""Options about classes, whose values depend on the data: the default metric, the positive class, weights of classes."""

from dataclasses import replace
from typing import Any

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

RARE = 0.1
"""Largest share of the training rows that a rare class has. Of many classes a rare one also has less than half of an
even share."""


def check(training: TrainingOptions) -> None:
    """Raise a ConfigError if a metric, loss, threshold or weight is none that any task takes."""
    for name, table, find in (("loss", LOSSES, find_loss), ("metric", METRICS, find_metric)):
        word = getattr(training, name)
        if word is not None:
            _check_word(name, word, {training.task: table[training.task]} if training.task else table, find)
    if training.class_weights not in (None, "balanced"):
        _pairs(training.class_weights)
    threshold_rule(training.threshold)


def _check_word(option, word, table, find):
    """Raise a ConfigError if no form in a table by form and name takes a word."""
    errors = []
    for form, kinds in table.items():
        try:
            find(form, word)
            return
        except ConfigError as error:
            stems = {name.partition("@")[0] for name in kinds}
            errors += [error] if len(table) == 1 or word.partition("@")[0].partition(":")[0] in stems else []
    if errors:
        raise errors[0]
    known = tuple(dict.fromkeys(name for kinds in table.values() for name in kinds))
    raise ConfigError(f"{option} {word!r} is not one of {', '.join(known)}{suggestion(word, known)}", option)


def _pairs(text):
    """Return (class, weight) pairs of a text as "a:1,b:20"."""
    found = []
    for word in text.split(","):
        name, colon, number = word.rpartition(":")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not colon or not 0 < weight < float("inf"):
            raise ConfigError(f"class_weights {text!r}: {word!r} is no CLASS:WEIGHT with a weight above 0; or balanced",
                              "class_weights")
        found.append((name, weight))
    return found


def of_data(comm: Communicator, training: TrainingOptions, part: Any) -> tuple[TrainingOptions, list[str]]:
    """Return the options with values that fit the data, and lines that tell what was decided. Collective.

    Parameters
    ----------
    comm : Communicator
    training : TrainingOptions
    part : load.Shard
        With the targets of the run's task.

    Returns
    -------
    TrainingOptions
        `metric` is a name, `positive` the number of a class, and `class_weights` "balanced" or by number of a class.
    list of str

    Raises
    ------
    ConfigError
        On every rank: a class is none of the data, or an option is about classes and the task is not.

    Notes
    -----
    A class that has at most `RARE` of the training rows is rare. With one the default metric is average precision (two
    classes) or the mean F1 score over classes, because a model that never predicts the class has a good accuracy.
    """
    form, names = part.task, part.class_names
    if form not in ("classify", "multilabel"):
        for name in ("class_weights", "positive", "threshold"):
            if getattr(training, name) not in (None, "0.5"):
                raise ConfigError(f"{name} {getattr(training, name)}: is of classes and labels, but the task is {form}",
                                  name)
        return training, []
    n = part.n_classes
    if training.class_weights not in (None, "balanced"):
        weights = {_number(name, names, n, "class_weights"): weight for name, weight in _pairs(training.class_weights)}
        training = replace(training, class_weights=weights)
    if form == "multilabel" or n != 2:
        for name, value in (("positive", None), ("threshold", "0.5")):
            if getattr(training, name) != value and not (form == "multilabel" and name == "threshold"):
                raise ConfigError(f"{name} {getattr(training, name)}: is of two classes, but there are {n} "
                                  f"{'labels' if form == 'multilabel' else 'classes'}", name)
    return (training, []) if form == "multilabel" else _of_classes(comm, training, part)


def _of_classes(comm, training, part):
    """Return the result of `of_data` for one class of each row. Collective."""
    rows = row_numbers("train", part.rows.train, part.graph.n_dst)
    counts = class_counts(comm, np.asarray(part.rows.labels), rows, part.n_classes)
    shares, n = counts / max(counts.sum(), 1), part.n_classes
    rare = np.flatnonzero((shares <= RARE) & (shares < 0.5 / n) & (counts > 0))
    names = part.class_names or [f"class {number}" for number in range(n)]
    lines = []
    if len(rare) and n > 1:
        told = ", ".join(f"{names[k]} {100 * shares[k]:.2g} %" for k in rare[np.argsort(shares[rare])][:5])
        more = f" and {len(rare) - 5} more" if len(rare) > 5 else ""
        line = f"rare among the training rows: {told}{more}"
        if training.metric is None:
            training = replace(training, metric="ap" if n == 2 else "macro-f1")
            line += f"; so the metric is {training.metric} (--metric accuracy is the share of rows that are right)"
        lines.append(line)
    if n == 2:
        own = training.positive
        number = int(0 in rare) ^ 1 if own is None else _number(own, part.class_names, n, "positive")
        training = replace(training, positive=number)
        lines += [f"positive class: {names[number]}"] if len(rare) or own is not None else []
    return training, lines


def _number(word, names, n, option):
    """Return the number of the class that a word names."""
    known = names or [str(number) for number in range(n)]
    if word not in known:
        some = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
        raise ConfigError(f"{option}: {word!r} is no class of the data, which have {some}", option)
    return known.index(word)
