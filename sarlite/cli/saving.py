"""A run's checkpoints on the way, and its end in good order when a signal asks for it."""

import math
import shlex
import signal
import sys
import time
from pathlib import Path

from sarlite.cli import run_report as report
from sarlite.cli.option import from_values
from sarlite.cli.options import MinibatchOptions
from sarlite.comm import together
from sarlite.comm.ending import tell
from sarlite.command import show
from sarlite.errors import SIGNALS, ConfigError, raise_together, writing
from sarlite.train import caches, checkpoint
from sarlite.train.stopping import Best
from sarlite.user_code import names_file

WAIT_SECONDS = 2.0
"""An epoch that takes longer is told of, once a signal came."""


class Saving:
    """Writes a run's files after each epoch, and stops the run on a signal. Every method except `votes` is collective.

    The ranks agree on signals, on the time for a checkpoint and on write errors of rank 0 by votes that travel with the
    loss (`step.PiggybackReduce`). So all ranks stop at the same epoch.

    Parameters
    ----------
    folder : Folder
    trainer : Trainer
    best : Best
    stopping : Stopping
    about : dict
        Entries of the checkpoint's metadata beside the epoch and the best epoch.
    toml : str
        Text of the options file for the folder.
    run : Settings
    start : int
        Epoch that the run continues from.
    interrupts : Interrupts
    keys : dict
        The result of `row_keys`.
    one_process : bool
        True if ranks are threads of this process.

    Attributes
    ----------
    epoch, saved : int
        Last completed epoch, and the epoch of the folder's checkpoint.
    signum : int
        Number of the signal that stopped training; 0 without one.
    """

    def __init__(self, folder, trainer, best, stopping, about, toml, run, start, interrupts, keys=None,
                 one_process=False):
        self.comm, self.folder, self.trainer, self.best, self.stopping = trainer.comm, folder, trainer, best, stopping
        self.about, self.toml, self.one_process, self._keys = about, toml, one_process, keys
        self.start = self.epoch = self.saved = start
        self.interrupts, self.signum, self._error = interrupts, 0, None
        self._last, self._output, self._due = run.training.epochs, run.output, time.monotonic()
        self._new = not folder.continues
        last, n_kept = run.training.epochs, run.output.keep
        self._kept = {-(-last * number // n_kept) for number in range(1, n_kept + 1)} if n_kept else set()
        trainer.riders.local = self.votes
        self._announce(slow=True)

    def votes(self):
        """Return this rank's votes: one for each signal, and on rank 0 for a due checkpoint and for a write error."""
        root = self.comm.rank == 0
        every = self._output.every_seconds
        due = root and every is not None and time.monotonic() - self._due >= every
        return (*(self.interrupts.noted == number for number in SIGNALS), due, root and self._error is not None)

    def try_disk(self):
        """Raise an error if the disk is too full: write a checkpoint of full size and remove it again."""
        self._write(trial=True, best=self.trainer.model.state_arrays())

    def on_epoch(self, record):
        """Write the epoch's line, and a checkpoint if one is due; return True if training stops."""
        self.epoch = record["epoch"]
        if self.epoch == self.start + 1:
            checkpoint.check_finite(self.trainer)
            together(self.comm, lambda: self.comm.rank == 0 and self.folder.begin(self.toml, self.start))
        if self.comm.rank == 0:
            try:
                with writing(self.folder.metrics.name, kind=ConfigError):
                    report.write_metrics(self.folder.metrics, record)
            except ConfigError as error:
                self._error = self._error or error
        self._announce(slow=record["seconds"] > WAIT_SECONDS)
        *signals, due, failed = self.trainer.riders.sums
        if failed:
            raise_together(self.comm, self._error)
        last = self.epoch == self._last
        if any(signals):
            self.signum = next(int(number) for number, votes in zip(SIGNALS, signals) if votes)
        every = self._output.every_epochs
        if not last and (self.signum or due or (every and self.epoch % every == 0)):
            self.save()
        if self.epoch in self._kept:
            self._write(best=self.best.state, path=self.folder.kept(self.epoch))
        return bool(self.signum) or self.epoch == self._output.stop_after

    def decide(self, threshold):
        """Store the decision threshold of the best model, a dict of `outcome`, in the checkpoint; None without one."""
        if threshold is not None:
            self.about["thresholds"] = threshold["values"]
            self.saved = self.start  # a checkpoint of this epoch has none yet

    def save(self):
        """Write the checkpoint of the last completed epoch, unless it exists already."""
        raise_together(self.comm, self._error)
        if self.saved != self.epoch:
            self._write(new=self._new, best=self.best.state)
            self.saved, self._new, self._due = self.epoch, False, time.monotonic()

    def meet_signals(self):
        """Take up a signal that came after the last votes, once signals are postponed no more."""
        noted = max(self.comm.allgather(self.interrupts.noted))
        self.signum = self.signum or noted

    def _write(self, best, trial=False, path=None, **options):
        scores = {name: value if value is not None and math.isfinite(value) else None
                  for name, value in self.best.scores.items()}
        best_epoch = {"epoch": self.best.epoch, "scores": scores, "decided": self.best.decided}
        about = {**self.about, "epoch": self.epoch, "best": best_epoch, **self.stopping.state()}
        together(self.comm, lambda: self.comm.rank == 0 and self.folder.check_there())
        self.trainer.buffers.trim()  # the pieces that are written of are not to stand beside a step's free memory
        found = caches.write(self.comm, self.folder.path, self.trainer, trial=trial)
        about |= {"caches": found} if found else {}
        checkpoint.write(path or self.folder.checkpoint, self.trainer, about, best, self._keys, trial=trial, **options)
        if not trial:
            caches.remove_others(self.folder.path, found, self.comm.size)

    def _announce(self, slow):
        """Have a signal answered at once where the end of the epoch may be long in coming."""
        if self.comm.rank == 0:
            answer = "the run ends with this epoch, and a checkpoint; a second signal ends it now\n"
            self.interrupts.answer = answer if slow else ""

    def leave(self, complete=False):
        """Tell how the interrupted run goes on, or that it is complete, and exit."""
        name = signal.Signals(self.signum).name
        if self.comm.rank == 0 and complete:
            tell(f"interrupted by {name} in epoch {self.epoch}, the last one: the run is complete")
        elif self.comm.rank == 0:
            launcher = f"mpiexec -n {self.comm.size} " if self.comm.size > 1 and not self.one_process else ""
            command = f"{launcher}python -m sarlite.train --resume {shlex.quote(str(self.folder.checkpoint))}"
            for option in ("model", "mode"):
                spec = self.about["options"][option]
                command += f" --{option} {shlex.quote(spec)}" if names_file(spec) else ""  # no checkpoint names code
            tell(f"interrupted by {name} after epoch {self.epoch} of {self._last}; to go on: {command}")
        raise SystemExit(128 + self.signum)


def restore(trainer, stopping, resumed, path, batches=None, keys=None):
    """Restore a checkpoint's state in a trainer and `stopping`. Collective.

    Parameters
    ----------
    trainer : Trainer
    stopping : Stopping
    resumed : tuple
        What `checkpoint.read` returned.
    path : path
        Of the checkpoint; files of caches stand beside it.
    batches : settings.Batches, optional
    keys : dict, optional
        The result of `row_keys`.

    Returns
    -------
    int, Best
        The epoch to go on from, and the best one so far.

    Raises
    ------
    CheckpointError
        On every rank: the state is of another model, or a file of caches is another one than the checkpoint was written
        with.
    """
    (tensors, meta), best = resumed, Best(trainer.task)
    with checkpoint.errors_of(path):
        best.state = checkpoint.restore_state(trainer, tensors, meta, keys)
        tensors.clear()  # which closes the file
        stopping.load_state(meta)
    if batches is not None and batches.remote == "hec" and trainer.comm.size > 1:
        _restore_caches(trainer, meta, Path(path).parent, batches)
    best.epoch, best.scores = meta["best"]["epoch"], {**best.scores, **meta["best"]["scores"]}
    best.decided = meta["best"].get("decided", best.epoch > 0)  # which an older checkpoint does not say
    if best.scores["val_loss"] is None:  # there was none yet
        best.scores["val_loss"] = float("inf")
    return meta["epoch"], best


def _restore_caches(trainer, meta, folder, batches):
    """Restore the embedding caches if they fit; else report the reason why they start empty."""
    told, step = meta.get("caches"), meta["epoch"] * len(trainer.batches)
    others = told and batches.at_remote() != from_values(MinibatchOptions, meta["options"]).at_remote()
    reason = "their flags were others" if others else caches.restore(trainer.comm, folder, trainer, told, step)
    if reason and trainer.comm.rank == 0:
        show(f"warning: the caches of embeddings start empty: {reason}", sys.stderr)
