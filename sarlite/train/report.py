"""What a run shows and leaves: progress, metrics.jsonl, the table and the line of JSON."""

import json
import math
import statistics
import sys
import time

from sarlite.errors import needs

LINE_SECONDS = 5.0


def write_metrics(file, record):
    """Append an epoch's line to metrics.jsonl; a number that is not finite is null."""
    record = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in record.items()}
    file.write(json.dumps(record, allow_nan=False) + "\n")
    file.flush()


class Progress:
    """tqdm on a terminal, else one line an interval; on standard error, with the time that is left.

    Under mpiexec standard error is a pipe, so only the caller knows of a terminal: kind "bar".
    """

    def __init__(self, kind, start, epochs):
        self.bar, self.shown, self.epochs = None, 0.0 if kind != "none" else float("inf"), epochs
        self.start, self.begun = start, time.monotonic()
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
            left = (time.monotonic() - self.begun) / (record["epoch"] - self.start) * (self.epochs - record["epoch"])
            parts += [f"{duration(left)} left"] if left else []
            print(f"epoch {record['epoch']}/{self.epochs}: {', '.join(parts)}", file=sys.stderr, flush=True)

    def close(self):
        if self.bar is not None:
            self.bar.close()


def duration(seconds):
    """Return a time in words: 0.25 s, 12 s, 3 min 05 s, 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 9.5 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


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


def table(config, size, summary, counted, best, times, run_dir):
    """Return the closing table as text; `times` are the seconds of "load", of "partition" in it, and of "epochs", and their number "n"."""
    balance = summary["partition"]["imbalance"]
    median = f", a step {1e3 * counted['epoch_seconds']:.1f} ms (median)" if times["n"] else ""
    rows = [
        ("data", f"{summary['data'].rstrip(':')}: {summary['nodes']:,} nodes, {summary['edges']:,} edges, "
                 f"{summary['features']} features, {summary['classes']} classes"),
        ("ranks", f"{size}, mode {config.mode}, prefetch {config.prefetch}, partition {summary['method']}, "
                  f"{100 * summary['partition']['cut_share']:.1f} % of edges cut{', nodes reordered' if summary['ordered'] else ''}"),
        ("balance", f"largest part / mean: nodes {balance['nodes']:.2f}, "
                    f"training nodes {balance['train_nodes']:.2f}, edges {balance['edges']:.2f}"),
        ("load", duration(times["load"])),
        ("partition", duration(times["partition"]) if times["partition"] else "none in this run"),
        ("epochs", f"{times['n']} in {duration(times['epochs'])}{median}"),
        ("accuracy", f"train {_share(best.scores['train_accuracy'])}, validation {_share(best.scores['val_accuracy'])}, "
                     f"test {_share(best.scores['test_accuracy'])} (epoch {best.epoch}, best validation)"),
        ("peak memory", _memory(counted["peak_bytes"], config.ranks > 1)),
        ("remote rows", _remote(counted["live_remote_buffers"], config, size)),
        ("sent", ", ".join(f"{phase} {_mib(n)}" for phase, n in counted["sent_bytes"].items()) or "nothing"),
        ("files", str(run_dir)),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _share(value):
    return "-" if value is None else f"{100 * value:.2f} %"


def _mib(n):
    return f"{n / 2**20:,.1f} MiB"


def _memory(peaks, one_process):
    """Each rank's, or of many what tells of them all."""
    if one_process:
        return f"{_mib(max(peaks))} (all ranks in one process)"
    if len(peaks) > 4:
        return f"{_mib(min(peaks))} to {_mib(max(peaks))}, median {_mib(statistics.median(peaks))}"
    return ", ".join(map(_mib, peaks)) + (" (by rank)" if len(peaks) > 1 else "")


def _remote(live, config, size):
    if size == 1:
        return "none: one part"
    bound = promise(config.mode, config.prefetch, size)
    note = f"{config.mode} promises no bound" if bound is None else f"sar promises at most {bound}"
    return f"{'that' if live == 1 else 'those'} of {live} other part{'' if live == 1 else 's'} held at most at once, {note}"


def json_line(config, size, counted, best):
    """Return the line of JSON that `--json` ends with."""
    return json.dumps({"ranks": size, "mode": config.mode, "seed": config.seed, "test_accuracy": best.scores["test_accuracy"],
                       "best_val_accuracy": best.scores["val_accuracy"], **counted})
