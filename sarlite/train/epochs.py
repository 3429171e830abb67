"""Training by epochs: evaluation, the best epoch, and reasons to end early."""

import math
import time
from collections.abc import Callable
from typing import Any

from sarlite.errors import ConfigError, DivergenceError, whole
from sarlite.train.stopping import Best, Stopping

DIVERGED = 1000.0
"""Factor of the first epoch's loss from which on training has diverged."""


def fit(trainer: Any, epochs: int, *, start: int = 0, eval_every: int = 1, best: Best | None = None,
        stopping: Stopping | None = None, on_epoch: Callable[[dict[str, Any]], Any] = lambda record: None,
        on_step: Callable[[int, float], Any] = lambda done, loss: None,
        on_divergence: Callable[[str], Any] = lambda text: None) -> Best:
    """Train to `epochs`, evaluating every `eval_every` and at the end; call `on_epoch` with each epoch's record.
    Collective.

    Training ends early if `on_epoch` returns True, on every rank alike, if `stopping` says so, or if training diverges.
    If `eval_every` does not divide `epochs` the last evaluation is forced: it is told, but decides nothing (`Best`).

    Training has diverged if the loss is not finite, or more than `DIVERGED` times the loss of the first epoch. Then
    `on_divergence` gets the reason, the epoch cannot become the best one, and the model has the best epoch's parameters
    again.

    Returns
    -------
    Best

    Raises
    ------
    ConfigError
        `epochs`, `start` or `eval_every` is no whole number, or less than 0, 0 or 1; or there are no validation rows,
        but a patience or a schedule `plateau`, which look at these.
    DivergenceError
        The loss is not finite before any epoch was evaluated.
    """
    epochs, start, eval_every = whole("epochs", epochs), whole("start", start), whole("eval_every", eval_every, 1)
    _check_rows(trainer, stopping)
    best, stopping, first_loss = best or Best(trainer.task), stopping or Stopping(), math.inf
    for epoch in range(start, epochs):
        if epoch % eval_every == 0 and stopping.ends(epoch, best):
            break
        due, diverged = (epoch + 1) % eval_every == 0, ""
        with trainer.graph.profile.span(f"epoch {epoch + 1}"):
            try:
                record = _train_epoch(trainer, epoch, on_step)
            except DivergenceError as error:
                if best.state is None:
                    raise
                _end_diverged(trainer, best, str(error), on_divergence)
                break
            first_loss = abs(record["loss"]) or math.inf if epoch == start else first_loss
            if record["loss"] > DIVERGED * first_loss:
                diverged = f"the loss rose from {first_loss:.4g} to {record['loss']:.4g} in epoch {epoch + 1}"
            if not diverged and (due or epoch + 1 == epochs) or diverged and best.state is None:
                record |= _evaluate(trainer, epoch, best, forced=not due)
        if due and record["val_loss"] is not None:
            stopping.evaluated(epoch + 1, best)
        ends = on_epoch(record) is True
        if diverged:
            _end_diverged(trainer, best, diverged, on_divergence)
        if ends or diverged:
            break
    return best


def _check_rows(trainer, stopping):
    """Raise a ConfigError if an option of `stopping` needs validation rows, and there are none."""
    for name, value in (("patience", stopping.patience), ("lr_schedule", stopping.plateau)) if stopping else ():
        if value is not None and not trainer.counts["val"]:
            told = value if name == "patience" else "plateau"
            raise ConfigError(f"{name} {told}: looks at the validation rows, but there are none", name)


def _end_diverged(trainer, best, reason, on_divergence):
    """Give the model the best epoch's parameters, and tell why training ends."""
    trainer.model.load_state_dict(best.state)
    on_divergence(f"training diverged, {reason.removesuffix(': try a lower learning rate')}, and ended; epoch "
                  f"{best.epoch} is kept: try a lower learning rate")


def _train_epoch(trainer, epoch, on_step):
    """Train an epoch; return its record, without scores."""
    begin = time.perf_counter()
    loss = trainer.epoch(epoch, on_step)
    return {"epoch": epoch + 1, "loss": loss, "seconds": time.perf_counter() - begin, "lr": trainer.training_step.lr,
            **{f"{name}_{trainer.task.key}": None for name in trainer.rows}, "val_loss": None}


def _evaluate(trainer, epoch, best, forced):
    """Evaluate after an epoch, report the scores to `best`, and return them."""
    profile = trainer.graph.profile
    with profile.span("evaluation"), profile.phase("evaluation"):
        scores = trainer.evaluate()
    best.update(epoch + 1, scores, trainer.model, forced)
    return scores
