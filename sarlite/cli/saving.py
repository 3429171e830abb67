"""Checkpoints during a run, and the orderly end of a run after a signal."""

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
"""If an epoch takes longer, the first signal is answered at once with a message."""


class Saving:
    """Writer of a run's files and checkpoints during training. After SIGINT or SIGTERM it saves a last checkpoint at the end of the epoch
    and then ends the process.

    Every method except `votes` is collective. The ranks agree on signals, on the time for a checkpoint and on write
    errors of rank 0 by votes that are summed together with the loss (`step.PiggybackReduce`). All ranks therefore stop
    after the same epoch.

    Parameters
    ----------
    folder : Folder
    trainer : Trainer
    best : Best
    stopping : Stopping
    about : dict
        Metadata of the checkpoints, except for the epoch and the best epoch.
    toml : str
        Contents of config.toml.
    run : Settings
    start : int
        Epoch that the run continues from.
    interrupts : Interrupts
        Handlers of signals.
    keys : dict
        Keys of the rows of learned parameters: the result of `row_keys`.
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
        """Return this rank's votes for the end of the epoch, as a tuple of bools: one for each signal received, one if a checkpoint
        is due, one if a write failed. Training sums them over the ranks.

        Only rank 0 returns True for a checkpoint or a write error.
        """
        root = self.comm.rank == 0
        every = self._output.every_seconds
        due = root and every is not None and time.monotonic() - self._due >= every
        return (*(self.interrupts.pending == number for number in SIGNALS), due, root and self._error is not None)

    def try_disk(self):
        """Write a checkpoint of full size and remove it. If the disk is too full, an error is raised before training."""
        self._write(trial=True, best=self.trainer.model.state_arrays())

    def on_epoch(self, record):
        """Write `record`, the numbers of an epoch, and a checkpoint if one is due. Return True if training must stop, after a
        signal or by --stop-after.
        """
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
        """Put the best model's decision `threshold`, an entry of its outcome, into the metadata of the next checkpoint. Do nothing if it is
        None, which stands for the threshold 0.5.

        Parameters
        ----------
        threshold : dict or None
            Entry "threshold" of `outcome`; None, which adds nothing, if the threshold is 0.5.
        """
        if threshold is not None:
            self.about["thresholds"] = threshold["values"]
            self.saved = self.start  # an existing checkpoint of this epoch lacks the threshold

    def save(self):
        """Write the checkpoint of the last completed epoch, unless it exists already."""
        raise_together(self.comm, self._error)
        if self.saved != self.epoch:
            self._write(new=self._new, best=self.best.state)
            self.saved, self._new, self._due = self.epoch, False, time.monotonic()

    def meet_signals(self):
        """Set `signum`, unless it is set, to the number of a signal that any rank has received, so that all ranks act on it. Collective.

        Call this method when signals are not postponed.
        """
        received = max(self.comm.allgather(self.interrupts.pending))
        self.signum = self.signum or received

    def _write(self, best, trial=False, path=None, **options):
        scores = {name: value if value is not None and math.isfinite(value) else None
                  for name, value in self.best.scores.items()}
        best_epoch = {"epoch": self.best.epoch, "scores": scores, "decided": self.best.decided}
        about = {**self.about, "epoch": self.epoch, "best": best_epoch}
        together(self.comm, lambda: self.comm.rank == 0 and self.folder.check_exists())
        self.trainer.buffers.trim()  # writing needs memory, too, so return the free memory of a step first
        cache_hashes = caches.write(self.comm, self.folder.path, self.trainer, trial=trial)
        about |= {"caches": cache_hashes} if cache_hashes else {}
        checkpoint.write(path or self.folder.checkpoint, self.trainer, about, best, self._keys, trial=trial, **options)
        if not trial:
            caches.remove_others(self.folder.path, cache_hashes, self.comm.size)

    def _announce(self, slow):
        """Set the text that is printed at once when a signal arrives: that the run ends after this epoch. If epochs are not `slow`,
        the text is empty, because the end comes soon.
        """
        if self.comm.rank == 0:
            answer = "the run ends with this epoch, and a checkpoint; a second signal ends it now\n"
            self.interrupts.answer = answer if slow else ""

    def leave(self, complete=False):
        """Raise SystemExit after a signal. Print the command that continues the run or, if `complete`, that the run is complete."""
        name = signal.Signals(self.signum).name
        if self.comm.rank == 0 and complete:
            tell(f"interrupted by {name} in epoch {self.epoch}, the last one: the run is complete")
        elif self.comm.rank == 0:
            launcher = f"mpiexec -n {self.comm.size} " if self.comm.size > 1 and not self.one_process else ""
            command = f"{launcher}python -m sarlite.train --resume {shlex.quote(str(self.folder.checkpoint))}"
            for option in ("model", "mode"):
                spec = self.about["options"][option]
                command += f" --{option} {shlex.quote(spec)}" if names_file(spec) else ""  # checkpoints name no code
            tell(f"interrupted by {name} after epoch {self.epoch} of {self._last}; to continue: {command}")
        raise SystemExit(128 + self.signum)


def restore(trainer, resumed, path, batches=None, keys=None):
    """Load `resumed`, (arrays, metadata) of the checkpoint `path`, into `trainer`; return (epoch to continue from, best epoch so
    far). `batches` are the options for minibatches, None for full batches. Learned rows are matched by `keys`, hashes of node
    names, or by id if `keys` is None. Collective.

    Parameters
    ----------
    trainer : Trainer
    resumed : (dict, dict)
        Arrays and metadata of the checkpoint, from `checkpoint.read`. The arrays are cleared.
    path : path
        Path of the checkpoint. Files of embedding caches are in the same folder.
    batches : MinibatchOptions, optional
    keys : dict, optional
        Keys of the rows of learned parameters: the result of `row_keys`.

    Returns
    -------
    epoch : int
        Epoch to continue from.
    best : Best
        Best epoch so far.

    Raises
    ------
    CheckpointError
        On every rank: the state belongs to another model, or a file of caches is not the checkpoint's.
    """
    (tensors, meta), best = resumed, Best(trainer.task)
    with checkpoint.errors_of(path):
        best.state = checkpoint.restore_state(trainer, tensors, meta, keys)
        tensors.clear()  # closes the file
    if batches is not None and batches.remote == "hec" and trainer.comm.size > 1:
        _restore_caches(trainer, meta, Path(path).parent, batches)
    best.epoch, best.scores = meta["best"]["epoch"], {**best.scores, **meta["best"]["scores"]}
    best.decided = meta["best"].get("decided", best.epoch > 0)  # older checkpoints have no such entry
    if best.scores["val_loss"] is None:  # no evaluation yet
        best.scores["val_loss"] = float("inf")
    return meta["epoch"], best


def _restore_caches(trainer, meta, folder, batches):
    """Load the embedding caches in `folder` into `trainer`. If their options, in the metadata `meta`, differ from `batches`, warn
    instead that the caches start empty.
    """
    hashes, step = meta.get("caches"), meta["epoch"] * len(trainer.batches)
    differ = hashes and batches.at_remote() != from_values(MinibatchOptions, meta["options"]).at_remote()
    reason = "their options have changed" if differ else caches.restore(trainer.comm, folder, trainer, hashes, step)
    if reason and trainer.comm.rank == 0:
        show(f"warning: the caches of embeddings start empty: {reason}", sys.stderr)
