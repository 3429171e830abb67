"""`sarlite-verify`: train some epochs of a run again, and compare each epoch's hash of the parameters with the recorded hash."""

import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sarlite.cli import report_command
from sarlite.cli.folder import CHECKPOINT, CONFIG, KEPT, METRICS, SUMMARY
from sarlite.cli.options import OPTIONS
from sarlite.cli.training_process import start_training, wait_for_error
from sarlite.command import Parser, run_command, show
from sarlite.errors import ConfigError, DataError
from sarlite.files import private_folder
from sarlite.train import checkpoint

NOT_COMPARED = ("seconds",)
"""Entries of an epoch's record that differ between two runs of the same computation."""


class Segment(NamedTuple):
    """Range of epochs between two kept checkpoints of a run.

    Attributes
    ----------
    first, last : int
        First and last epoch.
    start : Path or None
        The checkpoint before the first epoch; None for the beginning of the run.
    end : Path
        The checkpoint of the last epoch.
    """

    first: int
    last: int
    start: Path | None
    end: Path


def segments_of(folder: Path, n_epochs: int) -> list[Segment]:
    """Return the ranges of epochs between the checkpoints that --keep left in `folder`, the folder of a run of `n_epochs` epochs,
    in ascending order.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    n_epochs : int
        Number of epochs of the run.

    Raises
    ------
    DataError
        The folder has no kept checkpoint, or a checkpoint of an epoch after the last one.
    """
    ends = sorted(folder.glob(KEPT.format("*")))
    epochs = [_epoch_of(path) for path in ends]
    if not ends:
        raise DataError(f"{folder}: no checkpoint was kept on the way, so no epoch can be recomputed: train with --keep N")
    if epochs[-1] > n_epochs:
        raise DataError(f"{ends[-1]}: a checkpoint of epoch {epochs[-1]}, but {METRICS} has {n_epochs} epochs")
    starts = [None, *ends[:-1]]
    return [Segment(before + 1, epoch, start, end)
            for before, epoch, start, end in zip([0, *epochs[:-1]], epochs, starts, ends) if epoch > before]


def _epoch_of(path: Path) -> int:
    number = path.name.partition("-")[2].partition(".")[0]
    if not number.isdecimal():
        raise DataError(f"{path}: the file name has no epoch number")
    return int(number)


def check_records(run: report_command.RunFiles) -> None:
    """Raise an error unless `run` used exact numerics and recorded a hash of the parameters for every epoch.

    Raises
    ------
    ConfigError
        The run did not use exact numerics.
    DataError
        The record of an epoch is missing, or has no hash of the parameters.
    """
    if run.options.get("numerics") != "exact":
        raise ConfigError(f"{run.name}: numerics {run.options.get('numerics', 'fast')}: only exact numerics give the same "
                          "bits on other ranks, threads and processors, so only runs with --numerics exact can be verified")
    for number, record in enumerate(run.epochs, 1):
        if record["epoch"] != number:
            raise DataError(f"{run.name}/{METRICS}: line {number}: epoch {record['epoch']}, expected {number}")
        if not isinstance(record.get("parameters"), str):
            raise DataError(f"{run.name}/{METRICS}: line {number}: no hash of the parameters")


def recompute(run: report_command.RunFiles, segment: Segment, folder: Path, flags: Sequence[str]) -> None:
    """Train the epochs of `segment`, a range of epochs, again in the new folder `folder`, with the options of `run`. `flags`, such
    as "--ranks", override them.

    Parameters
    ----------
    run : RunFiles
    segment : Segment
    folder : Path
        New folder for the recomputed epochs.
    flags : sequence of str
        Flags of the training command that override the run's options.

    Raises
    ------
    DataError
        The training command failed; the message ends with its error.
    """
    resume = [] if segment.start is None else ["--resume", str(segment.start)]
    process = start_training(["--config", str(Path(run.name) / CONFIG), "--run-dir", str(folder),
                              "--stop-after", str(segment.last), *flags, *resume])
    error = wait_for_error(process).removeprefix("error: ")
    if error:
        raise DataError(f"epochs {segment.first} to {segment.last} cannot be recomputed: {error}")


def differences(run: report_command.RunFiles, segment: Segment, folder: Path) -> list[str]:
    """Compare the records of `run` in the epochs of `segment` with the epochs recomputed in `folder`. Return lines of text about the first
    difference; [] if all agree.

    Records are compared up to the first epoch that differs, because later epochs follow from it. If all records agree,
    the checkpoints of the last epoch are compared.
    """
    recomputed = report_command.read(str(folder)).epochs
    lines = []
    for recorded, computed in zip(run.epochs[segment.first - 1 : segment.last], recomputed):
        names = [name for name in {**recorded, **computed} if name not in NOT_COMPARED]
        odd = [name for name in names if recorded.get(name) != computed.get(name)]
        if odd:
            name = "parameters" if "parameters" in odd else odd[0]
            lines.append(f"epoch {recorded['epoch']}: {name}: recorded {recorded.get(name)}, computed {computed.get(name)}")
            break
    if len(recomputed) != segment.last - segment.first + 1:
        lines.append(f"epochs {segment.first} to {segment.last}: {len(recomputed)} were computed")
    lines += _other_state(segment.end, folder / CHECKPOINT) if not lines else []
    return lines


def contradictions(run: report_command.RunFiles, last: Segment) -> list[str]:
    """Return lines of text about contradictions between files in the folder of `run`; [] if there are none. The final checkpoint must equal
    the last kept checkpoint, at the end of the range of epochs `last`, if both are of the same epoch. The best scores in the summary must
    equal the scores in the record of their epoch.
    """
    path = Path(run.name) / CHECKPOINT
    ended = last.last == len(run.epochs)
    lines = [line.replace(last.end.name, f"{CHECKPOINT} beside {last.end.name}", 1)
             for line in (_other_state(last.end, path) if ended else [])]
    best: Any = run.summary.get("best") or {"scores": {}}
    record = run.epochs[best["epoch"] - 1] if 0 < best.get("epoch", 0) <= len(run.epochs) else {}
    lines += [f"{SUMMARY}: {name} {score} of epoch {best.get('epoch')}, but {METRICS} has {record.get(name)}"
              for name, score in best["scores"].items() if record.get(name) != score]
    return lines


def _other_state(kept_path: Path, computed_path: Path) -> list[str]:
    """Return a line, in a list, about the first difference between two checkpoints of the same epoch: data, a fixed option or an
    array. Return [] if they are equal.
    """
    (kept_arrays, kept_meta), (computed, computed_meta) = (checkpoint.load(path) for path in (kept_path, computed_path))
    for name in ("epoch", "data", "best"):
        if kept_meta.get(name) != computed_meta.get(name):
            stored, again = (json.dumps(meta.get(name))[:200] for meta in (kept_meta, computed_meta))
            return [f"{kept_path.name}: {name}: {stored}, computed {again}"]
    for name, option in OPTIONS.items():
        stored, again = (meta["options"].get(name) for meta in (kept_meta, computed_meta))
        if option.on_resume == "fixed" and stored != again:
            return [f"{kept_path.name}: option {name}: {stored!r}, but {CONFIG} has {again!r}"]
    for name in sorted({*kept_arrays, *computed}):
        if name not in kept_arrays or name not in computed:
            return [f"{kept_path.name}: array {name}: only {'kept' if name in kept_arrays else 'computed'}"]
        before, after = kept_arrays[name], computed[name]
        if before.dtype != after.dtype or before.shape != after.shape or before.tobytes() != after.tobytes():
            return [f"{kept_path.name}: array {name} differs"]
    return []


def verify(path: str, n_segments: int, seed: int | None, flags: Sequence[str]) -> int:
    """Train `n_segments` randomly drawn ranges of epochs of the run in folder `path` again, print the comparison, and return the
    exit status. `flags` override options of the run, and `seed` None draws a seed.

    Parameters
    ----------
    path : str
        Folder of the run.
    n_segments : int
        Number of segments to draw.
    seed : int or None
        Seed that draws the segments; None draws a seed.
    flags : sequence of str
        Flags of the training command that override the run's options.

    Returns
    -------
    int
        0 if all drawn segments agree, 1 if one differs, 2 if one cannot be recomputed.
    """
    run = report_command.read(path)
    check_records(run)
    segments = segments_of(Path(path), len(run.epochs))
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    drawn = sorted(random.Random(seed).sample(segments, min(n_segments, len(segments))))
    n_epochs = sum(segment.last - segment.first + 1 for segment in drawn)
    show(f"{path}: {len(drawn)} of {len(segments)} segments, {n_epochs} of {len(run.epochs)} epochs, drawn with --seed {seed}")
    lines = contradictions(run, segments[-1])
    compared = f"{CHECKPOINT} and {SUMMARY}"
    if segments[-1].last < len(run.epochs):
        show(f"{CHECKPOINT}: not compared, because the run went on after {segments[-1].end.name}")
        compared = SUMMARY
    show("\n".join(lines) if lines else f"{compared}: as the kept checkpoints and the records say")
    status = 1 if lines else 0
    for segment in drawn:
        with private_folder(tempfile.gettempdir()) as folder:
            name = f"epochs {segment.first} to {segment.last}"
            try:
                recompute(run, segment, folder / "run", flags)
            except DataError as error:
                show(f"{name}: {error}", sys.stderr)
                status = 1 if "checkpoint" in str(error) else 2
                continue
            lines = differences(run, segment, folder / "run")
            show("\n".join(lines) if lines else f"{name}: every record and the final state are equal")
            status = max(status, 1 if lines else 0)
    show({0: "verified", 1: "NOT verified: the data and the options do not give the files in the run's folder",
          2: "could not be verified"}[status])
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sarlite-verify` and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Command line arguments; by default the arguments of the process.

    Returns
    -------
    int
        0 if the run is verified, 1 if it differs, 2 if it cannot be checked.
    """
    return run_command(lambda: _main(argv))


def _main(argv):
    parser = Parser(prog="sarlite-verify", description="Recompute some epochs of a run in exact numerics, and compare.")
    parser.add_argument("run", metavar="RUN", help="folder of a run with --numerics exact and --keep N")
    parser.add_argument("--segments", type=int, default=2, metavar="N", help="number of segments to recompute; a segment lies "
                        "between two kept checkpoints (%(default)s)")
    parser.add_argument("--all", action="store_true", help="recompute all epochs")
    parser.add_argument("--seed", type=int, help="seed that draws the segments (drawn at random)")
    for name in ("data", "mode", "ranks", "threads", "model"):
        parser.add_argument(f"--{name}", metavar=name.upper(), help=f"replaces the run's {name}, which does not change the results"
                            if name in ("mode", "ranks", "threads") else f"path of the run's {name} on this machine")
    options = parser.parse_args(argv)
    if options.segments < 1:
        raise ConfigError(f"--segments {options.segments} is less than 1")
    flags = [word for name in ("data", "mode", "ranks", "threads", "model") if getattr(options, name) is not None
             for word in (f"--{name}", getattr(options, name))]
    return verify(options.run, 1 << 30 if options.all else options.segments, options.seed, flags)


if __name__ == "__main__":
    sys.exit(main())
