"""`sarlite-verify`: recompute some epochs of a run, and compare each epoch's hash of the parameters."""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sarlite.cli import report_command
from sarlite.cli.folder import CHECKPOINT, CONFIG, KEPT, METRICS
from sarlite.cli.options import OPTIONS
from sarlite.command import Parser, returns_status, run_command, show
from sarlite.errors import ConfigError, DataError
from sarlite.files import private_folder
from sarlite.train import checkpoint

NOT_COMPARED = ("seconds",)
"""Entries of an epoch's record that differ between two runs of the same computation."""


class Segment(NamedTuple):
    """Epochs between two kept checkpoints.

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
    """Return the segments between the kept checkpoints of a run of `n_epochs` epochs, in order.

    Raises
    ------
    DataError
        The folder has no kept checkpoint, or a checkpoint of an epoch that the run did not have.
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
        raise DataError(f"{path}: the name has no number of an epoch")
    return int(number)


def check_records(run: report_command.RunFiles) -> None:
    """Raise a ConfigError or DataError unless every epoch of a run in exact numerics has a record with a hash."""
    if run.options.get("numerics") != "exact":
        raise ConfigError(f"{run.name}: numerics {run.options.get('numerics', 'fast')}: only exact numerics give the same "
                          "bits on other ranks, threads and processors, so only runs with --numerics exact can be verified")
    for number, record in enumerate(run.epochs, 1):
        if record["epoch"] != number:
            raise DataError(f"{run.name}/{METRICS}: line {number}: epoch {record['epoch']}, expected {number}")
        if not isinstance(record.get("parameters"), str):
            raise DataError(f"{run.name}/{METRICS}: line {number}: no hash of the parameters")


def recompute(run: report_command.RunFiles, segment: Segment, folder: Path, flags: Sequence[str]) -> None:
    """Train the epochs of a segment again, in `folder`, by the training command with the run's options.

    Raises
    ------
    DataError
        The command failed; the message has its error.
    """
    command = [sys.executable, "-m", "sarlite.train", "--config", str(Path(run.name) / CONFIG), "--run-dir", str(folder),
               "--stop-after", str(segment.last), "--progress", "none", *flags]
    if segment.start is not None:
        command += ["--resume", str(segment.start)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
        raise DataError(f"epochs {segment.first} to {segment.last} cannot be recomputed: {lines[-1].removeprefix('error: ')}")


def differences(run: report_command.RunFiles, segment: Segment, folder: Path) -> list[str]:
    """Return what differs between a segment of a run and the same epochs in `folder`, a line each."""
    again = report_command.read(str(folder)).epochs
    lines = []
    for recorded, computed in zip(run.epochs[segment.first - 1 : segment.last], again):
        names = [name for name in {**recorded, **computed} if name not in NOT_COMPARED]
        odd = [name for name in names if recorded.get(name) != computed.get(name)]
        if odd:
            name = "parameters" if "parameters" in odd else odd[0]
            lines.append(f"epoch {recorded['epoch']}: {name}: recorded {recorded.get(name)}, computed {computed.get(name)}")
            break  # what follows differs because of this epoch
    if len(again) != segment.last - segment.first + 1:
        lines.append(f"epochs {segment.first} to {segment.last}: {len(again)} were computed")
    lines += _other_state(segment.end, folder / CHECKPOINT) if not lines else []
    return lines


def _other_state(kept: Path, computed: Path) -> list[str]:
    """Return what differs between two checkpoints of one epoch: data, fixed options, or an array."""
    (tensors, meta), (own, again) = (checkpoint.load(path) for path in (kept, computed))
    for name in ("epoch", "data", "best"):
        if meta.get(name) != again.get(name):
            return [f"{kept.name}: {name}: {json.dumps(meta.get(name))[:200]}, computed {json.dumps(again.get(name))[:200]}"]
    for name, option in OPTIONS.items():
        there, here = (about["options"].get(name) for about in (meta, again))
        if option.on_resume == "fixed" and there != here:
            return [f"{kept.name}: option {name}: {there!r}, but {CONFIG} has {here!r}"]
    for name in sorted({*tensors, *own}):
        if name not in tensors or name not in own:
            return [f"{kept.name}: array {name}: only {'kept' if name in tensors else 'computed'}"]
        there, here = tensors[name], own[name]
        if there.dtype != here.dtype or there.shape != here.shape or there.tobytes() != here.tobytes():
            return [f"{kept.name}: array {name} differs"]
    return []


def verify(path: str, n_segments: int, seed: int | None, flags: Sequence[str]) -> int:
    """Recompute some segments of a run, drawn at random; print what was found, and return the exit status."""
    run = report_command.read(path)
    check_records(run)
    segments = segments_of(Path(path), len(run.epochs))
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    drawn = sorted(random.Random(seed).sample(segments, min(n_segments, len(segments))))
    n_epochs = sum(segment.last - segment.first + 1 for segment in drawn)
    show(f"{path}: {len(drawn)} of {len(segments)} segments, {n_epochs} of {len(run.epochs)} epochs, drawn with --seed {seed}")
    status = 0
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
            show("\n".join(lines) if lines else f"{name}: every record and the state at the end are equal")
            status = max(status, 1 if lines else 0)
    show({0: "verified", 1: "NOT verified: the run's folder does not follow from the data and the options",
          2: "could not be verified"}[status])
    return status


@returns_status
def main(argv: Sequence[str] | None = None) -> int:
    """Verify a run as the command line says; return 0 if it is verified, 1 if it differs, 2 if it cannot be checked."""
    return run_command(lambda: _main(argv))


def _main(argv):
    parser = Parser(prog="sarlite-verify", description="Recompute some epochs of a run in exact numerics, and compare.")
    parser.add_argument("run", metavar="RUN", help="folder of a run with --numerics exact and --keep N")
    parser.add_argument("--segments", type=int, default=2, metavar="N", help="segments between two kept checkpoints that are "
                        "recomputed (%(default)s)")
    parser.add_argument("--all", action="store_true", help="recompute all epochs")
    parser.add_argument("--seed", type=int, help="seed that draws the segments (drawn)")
    for name in ("data", "mode", "ranks", "threads", "model"):
        parser.add_argument(f"--{name}", metavar=name.upper(), help=f"in place of the run's {name}; it does not change a bit"
                            if name in ("mode", "ranks", "threads") else f"where the {name} of the run stands here")
    options = parser.parse_args(argv)
    if options.segments < 1:
        raise ConfigError(f"--segments {options.segments} is less than 1")
    flags = [word for name in ("data", "mode", "ranks", "threads", "model") if getattr(options, name) is not None
             for word in (f"--{name}", getattr(options, name))]
    return verify(options.run, 1 << 30 if options.all else options.segments, options.seed, flags)


if __name__ == "__main__":
    sys.exit(main())
