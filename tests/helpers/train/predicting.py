"""Runs of the predict command in this process."""

from pathlib import Path

import numpy as np

from sarlite.cli import predict_command
from sarlite.comm import Solo, threads


def predict_here(run_dir, out, *flags, comm=None, **arguments):
    """Run the predict command on a run's checkpoint in this process; return (array in the file `out`, its labels' array or None)."""
    words = ["--checkpoint", run_dir / "checkpoint.safetensors", "--out", out, "--threads", 1, "--progress", "none", *flags]
    options, command_options = predict_command.parse([str(word) for word in words])
    if options.machine.ranks > 1:
        threads.run(options.machine.ranks, predict_command.predict, options, command_options, **arguments)
    else:
        predict_command.predict(comm or Solo(), options, command_options, **arguments)
    labels = Path(str(out).replace(".npy", ".labels.npy"))
    return np.load(out), np.load(labels) if labels.exists() else None
