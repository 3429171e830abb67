"""What a run shows and leaves: progress, metrics.jsonl, the table and the line of JSON."""

import json
import math
import os
import statistics
import sys
import time
from pathlib import Path

from sarlite.errors import needs

LINE_SECONDS = 5.0


class Metrics:
    """metrics.jsonl: one line an epoch, on rank 0."""

    def __init__(self, path, start):
        """Keep the lines of epochs up to `start`, which a resumed run does not repeat."""
        temporary = Path(f"{path}.tmp")
        temporary.write_text("".join(line + "\n" for line in _lines_until(path, start)))
        os.replace(temporary, path)  # the old lines are there until the new ones are
        self.file = open(path, "a")  # noqa: SIM115, closed by `close`

    def write(self, record):
        record = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in record.items()}
        self.file.write(json.dumps(record, allow_nan=False) + "\n")
        self.file.flush()

    def close(self):
        self.file.close()


def _lines_until(path, epoch):
    """The lines of epochs up to `epoch`, as far as they are whole: a killed run may end in the middle of one."""
    kept = []
    for line in Path(path).read_text().splitlines() if epoch and Path(path).exists() else []:
        try:
            if json.loads(line)["epoch"] > epoch:
                break
        except (ValueError, KeyError, TypeError):
            break
        kept.append(line)
    return kept


class Progress:
    """tqdm on a terminal, else one line an interval; on standard error.

    Under mpiexec standard error is a pipe, so only the caller knows of a terminal: kind "bar".
    """

    def __init__(self, kind, start, epochs):
        self.bar, self.shown, self.epochs = None, 0.0 if kind != "none" else float("inf"), epochs
        if kind == "bar" or (kind == "auto" and sys.stderr.isatty()):
            self.bar = needs("tqdm", "--progress bar").tqdm(total=epochs, initial=start, unit="epoch", dynamic_ncols=True)

    def update(self, record):
        scores = [(name, record[f"{name}_accuracy"]) for name in ("train", "val")]
        parts = [f"loss {record['loss']:.4f}", *(f"{name} {score:.4f}" for name, score in scores if score is not None)]
        if self.bar is not None:
            self.bar.set_postfix_str(", ".join(parts), refresh=False)
            self.bar.update()
        elif (record["epoch"] == self.epochs and self.shown < float("inf")) or time.monotonic() - self.shown >= LINE_SECONDS:
            self.shown = time.monotonic()
            print(f"epoch {record['epoch']}/{self.epochs}: {', '.join(parts)}", file=sys.stderr, flush=True)

    def close(self):
        if self.bar is not None:
            self.bar.close()


def collect(comm, graph, memory, seconds):
    """Return what all ranks counted. Collective."""
    profile = graph.profile
    own = {"peak_bytes": memory.peak(), "live": profile.peak_remote_buffers, "sent": dict(profile.sent_bytes)}
    ranks = comm.allgather(own)
    phases = sorted({phase for rank in ranks for phase, n in rank["sent"].items() if n})
    return {
        "epoch_seconds": statistics.median(seconds) if seconds else None,
        "peak_bytes": [rank["peak_bytes"] for rank in ranks],
        "live_remote_buffers": math.ceil(max(rank["live"] for rank in ranks)),
        "sent_bytes": {phase: sum(rank["sent"].get(phase, 0) for rank in ranks) for phase in phases},
    }


def promise(mode, prefetch, size):
    """Return how many remote buffers the mode may hold at once (DESIGN: Memory)."""
    if mode == "sar":
        return min(1 + prefetch, size - 1)
    return None


def table(config, size, summary, counted, best, n_epochs, run_dir):
    """Return the closing table as text."""
    score = lambda value: "-" if value is None else f"{100 * value:.2f} %"  # noqa: E731
    mib = lambda n: f"{n / 2**20:,.1f} MiB"  # noqa: E731
    bound = promise(config.mode, config.prefetch, size)
    note = f"sar promises at most {bound}" if bound is not None else f"{config.mode} promises no bound"
    balance = summary["partition"]["imbalance"]
    rows = [
        ("data", f"{summary['data']}: {summary['nodes']:,} nodes, {summary['edges']:,} edges, "
                 f"{summary['features']} features, {summary['classes']} classes"),
        ("ranks", f"{size}, mode {config.mode}, prefetch {config.prefetch}, partition {summary['method']}, "
                  f"{100 * summary['partition']['cut_share']:.1f} % of edges cut{', nodes reordered' if summary['ordered'] else ''}"),
        ("balance", f"largest part / mean: nodes {balance['nodes']:.2f}, "
                    f"training nodes {balance['train_nodes']:.2f}, edges {balance['edges']:.2f}"),
        ("accuracy", f"train {score(best.scores['train_accuracy'])}, validation {score(best.scores['val_accuracy'])}, "
                     f"test {score(best.scores['test_accuracy'])} (epoch {best.epoch}, best validation)"),
        ("epoch", "-" if counted["epoch_seconds"] is None else f"{1e3 * counted['epoch_seconds']:.1f} ms (median of {n_epochs})"),
        ("peak memory", " ".join(mib(n) for n in counted["peak_bytes"]) + (" (all in one process)" if config.ranks > 1 else " (by rank)")),
        ("remote rows", f"those of {counted['live_remote_buffers']} other parts held at most at once, {note}"),
        ("sent", ", ".join(f"{phase} {mib(n)}" for phase, n in counted["sent_bytes"].items()) or "nothing"),
        ("files", str(run_dir)),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def json_line(config, size, counted, best):
    """Return the line of JSON that `--json` ends with."""
    return json.dumps({"ranks": size, "mode": config.mode, "seed": config.seed, "test_accuracy": best.scores["test_accuracy"],
                       "best_val_accuracy": best.scores["val_accuracy"], **counted})
