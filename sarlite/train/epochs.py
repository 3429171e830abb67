"""Training by epochs: when to evaluate, which epoch is the best, and when to end early."""

import math
import time
from collections.abc import Callable
from typing import Any

from sarlite.errors import ConfigError, DivergenceError, check_int
from sarlite.train.stopping import Best, Scores, Stopping
from sarlite.types import JsonDict

DIVERGED = 1000.0
"""Training has diverged if an epoch's loss exceeds this factor times the first epoch's loss."""


def fit(trainer: Any, epochs: int, *, start: int = 0, eval_every: int = 1, best: Best | None = None,
        stopping: Stopping | None = None, on_epoch: Callable[[JsonDict], object] = lambda record: None,
        on_step: Callable[[int, float], object] = lambda done, loss: None,
        on_divergence: Callable[[str], object] = lambda text: None) -> Best:
    """Train epochs start .. epochs - 1, evaluate after every `eval_every` epochs, and return the best epoch; `best` is the best one before
    `start`. `stopping` is a rule that ends training early. The callbacks are called after an epoch, after a step, and if the loss diverges.
    Collective.

    Training ends early if `on_epoch` returns True, if `stopping` ends it, or if training diverges. Training has diverged
    if the loss is not finite, or more than `DIVERGED` times the loss of the first epoch. A diverged epoch cannot become
    the best one, and the model gets the best epoch's parameters again.

    Parameters
    ----------
    trainer : Trainer
    epochs : int
        Total number of epochs, those before `start` included.
    start : int
        Number of epochs that were trained before.
    eval_every : int
        Number of epochs from one evaluation to the next. The last epoch is evaluated too. If `eval_every` does not
        divide `epochs`, this last evaluation is forced (see `Best`).
    best : Best, optional
        The best epoch before the call.
    stopping : Stopping, optional
        Rule that ends training or lowers the learning rate.
    on_epoch : callable
        Called with each epoch's record, a dict as `Trainer.fit` documents. Returns True, on every rank, to end training.
    on_step : callable
        Called as `on_step(n_steps_done, loss)` after each step.
    on_divergence : callable
        Called with the reason, a text, if training diverges.

    Returns
    -------
    Best
        `best`, updated, or a new object.

    Raises
    ------
    ConfigError
        `epochs`, `start` or `eval_every` is not a whole number, or is below 0, 0 or 1. Or `stopping` has a patience or a
        plateau schedule, which need validation rows, and there are none.
    DivergenceError
        The loss is not finite before any epoch was evaluated.
    """
    epochs, start, eval_every = check_int("epochs", epochs), check_int("start", start), check_int("eval_every", eval_every, 1)
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


def _check_rows(trainer: Any, stopping: Stopping | None) -> None:
    """Raise a ConfigError if the rule `stopping` needs validation rows and there are none."""
    for name, value in (("patience", stopping.patience), ("lr_schedule", stopping.plateau)) if stopping else ():
        if value is not None and not trainer.counts["val"]:
            shown = value if name == "patience" else "plateau"
            raise ConfigError(f"{name} {shown}: needs validation rows, but there are none", name)


def _end_diverged(trainer: Any, best: Best, reason: str, on_divergence: Callable[[str], object]) -> None:
    """Restore the parameters of the best epoch after training has diverged, and call `on_divergence` with a text for the user that contains
    the `reason`.
    """
    trainer.model.load_state_dict(best.state)
    on_divergence(f"training diverged, {reason.removesuffix(': try a lower learning rate')}, and ended; the model has the "
                  f"parameters of epoch {best.epoch}: try a lower learning rate")


def _train_epoch(trainer: Any, epoch: int, on_step: Callable[[int, float], object]) -> JsonDict:
    """Train one epoch. Return its record, a dict with the loss, seconds and learning rate, and with None for the scores of an evaluation.
    `on_step` is called as on_step(n_steps_done, loss).
    """
    begin = time.perf_counter()
    loss = trainer.epoch(epoch, on_step)
    return {"epoch": epoch + 1, "loss": loss, "seconds": time.perf_counter() - begin, "lr": trainer.training_step.lr,
            **{f"{name}_{trainer.task.key}": None for name in trainer.rows}, "val_loss": None}


def _evaluate(trainer: Any, epoch: int, best: Best, forced: bool) -> Scores:
    """Evaluate the model after `epoch`, a number from 0, let `best` compare the scores with the best epoch, and return the scores. `forced`
    is True if the evaluation takes place only because training ends.
    """
    profile = trainer.graph.profile
    with profile.span("evaluation"), profile.phase("evaluation"):
        scores = trainer.evaluate()
    best.update(epoch + 1, scores, trainer.model, forced)
    return scores
