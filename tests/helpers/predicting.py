"""Runs of the predict command in this process."""

from pathlib import Path

import numpy as np

from sarlite import predict
from sarlite.comm import Solo, threads


def predict_here(run_dir, out, *flags, comm=None, **arguments):
    """Predict with a run's checkpoint, and return the arrays of --out and of the labels, None where there are none."""
    words = ["--checkpoint", run_dir / "checkpoint.safetensors", "--out", out, "--threads", 1, "--progress", "none", *flags]
    options = predict.parse([str(word) for word in words])
    if options.ranks > 1:
        threads.run(options.ranks, predict.predict, options, **arguments)
    else:
        predict.predict(comm or Solo(), options, **arguments)
    labels = Path(str(out).replace(".npy", ".labels.npy"))
    return np.load(out), np.load(labels) if labels.exists() else None
