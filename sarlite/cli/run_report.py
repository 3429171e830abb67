"""Output of a run: progress, metrics.jsonl, the closing table, summary.json and the line of JSON."""

import json
import math
import platform
import statistics
import sys
import time

import numpy as np

from sarlite import kernels, progress
from sarlite.cli import class_report, link_report
from sarlite.errors import import_optional, writing
from sarlite.graph.graph import Graph
from sarlite.graph.hetero import NodeType
from sarlite.tasks.metric_table import lower_is_better

LINE_SECONDS = 5.0
"""Least time between two lines of progress."""


def write_metrics(file, record):
    """Append `record`, the dict of an epoch's numbers, as a line of JSON to `file`, the open metrics.jsonl. Numbers that are not
    finite become null.
    """
    file.write(json.dumps(finite(record), allow_nan=False) + "\n")
    file.flush()


def events(folder, check=False):
    """Return a function that writes the record of an epoch as TensorBoard events into `folder`, or does nothing if it is None. With
    `check`, only raise an error if the package is missing.

    Parameters
    ----------
    folder : path or None
        Folder for TensorBoard's files. None returns a function that does nothing.
    check : bool
        True to check only that the package is installed, and to return None.

    Raises
    ------
    ConfigError
        The package tensorboardX is not installed, or the folder cannot be made.
    """
    if folder is None:
        return lambda record: None
    writers = import_optional("tensorboardX", "--tensorboard")
    if check:
        return None
    with writing(folder):
        writer = writers.SummaryWriter(str(folder), flush_secs=10)

    def write(record):
        for name, value in record.items():
            if name not in ("epoch", "parameters") and value is not None:
                writer.add_scalar(name.replace("_", "/", 1), value, record["epoch"])
        writer.flush()

    return write


class EpochProgress:
    """Progress of training on standard error, with the remaining time: a tqdm bar, or a line every `LINE_SECONDS`.

    Parameters
    ----------
    kind : {"auto", "bar", "lines", "none"}
        As for `progress.bar_class`. Under mpiexec, standard error is a pipe, so that "auto" prints lines.
    start, epochs : int
        Epochs completed before, and the last epoch.
    steps : int
        Number of steps of an epoch.
    metric : str
        Key of the metric in records, such as "macro_f1".
    """

    def __init__(self, kind, start, epochs, steps=1, metric="accuracy"):
        self.metric = metric
        self.bar, self.shown, self.epochs, self.steps = None, 0.0 if kind != "none" else float("inf"), epochs, steps
        self.start, self.epoch, self.begun = start, start, time.monotonic()
        if bar := progress.bar_class(kind, sys.stderr):
            self.bar = bar(total=epochs * steps, initial=start * steps, dynamic_ncols=True,
                           unit="epoch" if steps == 1 else "step")

    def step(self, done, loss):
        """Report that `done` steps of the current epoch are completed, the last one with the loss `loss`.

        Parameters
        ----------
        done : int
            Number of completed steps of the epoch. The last step is not reported, because `update` follows.
        loss : float
        """
        if done < self.steps:
            self._report(f"epoch {self.epoch + 1}/{self.epochs}, step {done}/{self.steps}",
                       self.epoch + done / self.steps, [f"loss {loss:.4f}"])

    def update(self, record):
        """Report a completed epoch; `record` is its line of metrics.jsonl as a dict."""
        self.epoch = record["epoch"]
        scores = [(name, record[f"{name}_{self.metric}"]) for name in ("train", "val")]
        shown = [f"{name} {self.metric.replace('_', '-')} {score:.4f}" for name, score in scores if score is not None]
        parts = [f"loss {record['loss']:.4f}", *shown]
        self._report(f"epoch {self.epoch}/{self.epochs}", self.epoch, parts)

    def _report(self, position, epochs_done, values):
        """Update the bar, or print a line every `LINE_SECONDS`: `position`, such as "epoch 3/10", then the texts `values` and the
        time left, computed from the number `epochs_done`.
        """
        if self.bar is not None:
            self.bar.set_postfix_str(", ".join(values), refresh=False)
            self.bar.update()
        elif (epochs_done == self.epochs and self.shown < float("inf")) or time.monotonic() - self.shown >= LINE_SECONDS:
            self.shown = time.monotonic()
            left = (time.monotonic() - self.begun) / (epochs_done - self.start) * (self.epochs - epochs_done)
            values += [f"{duration(left)} left"] if left else []
            print(f"{position}: {', '.join(values)}", file=sys.stderr, flush=True)

    def close(self):
        if self.bar is not None:
            self.bar.close()


def duration(seconds):
    """Return a time in seconds as text with a unit, with two significant digits below 9.5 seconds.

    Examples
    --------
    >>> duration(0.25), duration(12), duration(185)
    ('0.25 s', '12 s', '3 min 05 s')
    """
    return f"{seconds:.2g} s" if seconds < 9.5 else progress.duration(seconds)


def collect(comm, graph, memory, seconds):
    """Return a dict of measurements of a run on `graph`: peak memory of each rank, by the counter `memory`; sent bytes by phase; and the
    median of `seconds`, the times of the epochs. Collective.

    Parameters
    ----------
    comm : Communicator
    graph : Graph, NodeType or GraphSet
    memory : Memory
    seconds : list of float
        Time of each epoch.

    Returns
    -------
    dict
        "epoch_seconds": median time of an epoch, or None; "peak_bytes": peak memory by rank; "live_remote_buffers":
        largest number of peers whose rows a rank held at once; "sent_bytes": bytes of all ranks by phase; for
        relational graphs "relations": the evaluation order of each relation's weights.
    """
    profile = graph.profile
    measured = {"peak_bytes": memory.peak(), "live": profile.peak_remote_buffers, "sent": dict(profile.sent_bytes)}
    ranks = comm.allgather(measured)
    phases = sorted({phase for rank in ranks for phase, n in rank["sent"].items() if n})
    return {
        **_evaluations(graph),
        "epoch_seconds": statistics.median(seconds) if seconds else None,
        "peak_bytes": [rank["peak_bytes"] for rank in ranks],
        "live_remote_buffers": math.ceil(max(rank["live"] for rank in ranks)),
        "sent_bytes": {phase: sum(rank["sent"].get(phase, 0) for rank in ranks) for phase in phases},
    }


MOST_PAIRS = 64
"""Largest number of ranks for which bytes and edges by pair of ranks are reported."""


def pictured(comm, graph):
    """Return a dict of matrices of a run on `graph`, which the HTML report draws: bytes by sending and receiving rank for each phase, and
    numbers of edges by the parts (ranks) of their two nodes. Collective.

    Returns
    -------
    dict
        "sent_pairs": for each phase, the bytes of rows by sending and by receiving rank, lists of shape (n_ranks,
        n_ranks); for a `Graph` also "tiles": the number of edges by part of the destination and by part of the source.
        {} for one rank and for more than `MOST_PAIRS` ranks.
    """
    if not 1 < comm.size <= MOST_PAIRS:
        return {}
    measured = {"sent": graph.profile.sent_to}
    if type(graph) is Graph:
        measured["edges"] = _edges_by_owner(graph.plan, comm.rank, comm.size)
    ranks = comm.allgather(measured)
    phases = sorted({phase for rank in ranks for phase, _ in rank["sent"]} - {"setup"})
    pairs = {phase: [[rank["sent"].get((phase, to), 0) for to in range(comm.size)] for rank in ranks]
             for phase in phases}
    tiles = {"tiles": [rank["edges"] for rank in ranks]} if "edges" in measured else {}
    return {"sent_pairs": pairs, **tiles}


def _edges_by_owner(plan, rank, n_ranks):
    """Count the edges of the rank with number `rank` by the rank that owns the edge's source node; return a list of `n_ranks` counts.
    `plan` has these edges, divided into blocks.
    """
    counts = [0] * n_ranks
    for block, owner, columns in plan.halo():
        counts[owner] += int(np.count_nonzero((block.indices >= columns.start) & (block.indices < columns.stop)))
    counts[rank] = sum(block.n_edges for block in plan.blocks) - sum(counts)
    return counts


def _evaluations(graph):
    """Return {"relations": list} with an item for each relation of `graph`: the chosen order of the aggregation and the product with the
    weight matrix, and the cost of both orders. Return {} for a graph that is not relational.
    """
    nodes = _nodes(graph)
    return {"relations": [evaluation._asdict() for evaluation in nodes.graph.evaluations]} if isinstance(nodes, NodeType) else {}


def _nodes(graph):
    """Return the graph of nodes that a LinkGraph or a GraphSet wraps; return any other graph unchanged."""
    return getattr(graph, "nodes", graph)


def most_peers_held(options, n_ranks):
    """Return the largest number of peers whose rows a rank may hold at the same time under the schedule `options`, with `n_ranks` ranks;
    None if there is no bound.

    Parameters
    ----------
    options : schedule.Options
    n_ranks : int
        Number of ranks.

    Returns
    -------
    int or None
        (1 + prefetch) times the peers at once, at most all peers; None if the mode keeps all rows.
    """
    mode = options.mode_value
    at_once = getattr(mode, "peers_at_once", 1) or n_ranks - 1
    return None if mode.keeps_rows else min((1 + options.prefetch) * at_once, n_ranks - 1)


def table(run, n_ranks, summary, measurements, best, times, run_dir, one_process=False):
    """Return the table printed after training as text. It shows the data (`summary`), the `measurements`, the scores of the `best` epoch,
    the `times` in seconds and the folder `run_dir`. If `one_process`, the ranks are threads of one process and share its peak memory.

    Parameters
    ----------
    run : Settings
    n_ranks : int
        Number of ranks.
    summary : dict
        Facts about the data and their division: `Shard.summary`.
    measurements : dict
        Measurements, which `--json` prints too.
    best : Best
    times : dict
        Seconds of "load", which include "partition", and of "epochs"; "n", the number of epochs; "early", True if
        patience ended the training.
    run_dir : path
    one_process : bool
        True if the ranks are threads of one process.
    """
    balance, patience = summary["partition"]["imbalance"], run.training.patience
    kind = "a step" if not run.batches else "an epoch"
    median = f", {kind} {1e3 * measurements['epoch_seconds']:.1f} ms (median)" if times["n"] else ""
    patient = patience and times["early"]
    rows = [
        ("data", f"{summary['data'].rstrip(':')}: {summary['nodes']:,} nodes, {summary['edges']:,} edges, "
                 f"{summary['features']} features, {summary['classes']} {_OUTPUTS[summary['task']]}"
                 + (f", with {' and '.join(summary['edge_values'])}" if summary.get("edge_values") else "")),
        ("ranks", f"{n_ranks}, mode {run.graph.mode}, prefetch {run.graph.prefetch}, partition {summary['method']}, "
                  f"{100 * summary['partition']['cut_share']:.1f} % of edges cut"
                  f"{', nodes reordered' if summary['ordered'] else ''}"),
        ("balance", f"largest part / mean: nodes {balance['nodes']:.2f}, "
                    f"training nodes {balance['train_nodes']:.2f}, edges {balance['edges']:.2f}"),
        ("load", duration(times["load"])),
        ("partition", duration(times["partition"]) if times["partition"] else "none in this run"),
        ("epochs", f"{times['n']} in {duration(times['epochs'])}{median}"
                   f"{_PATIENT.format(patience) if patient else ''}"),
        *_links(measurements.get("links")),
        *_minibatches(run.batches, n_ranks, measurements),
        *_message_flow(measurements),
        *_relations(measurements),
        (best.task.metric, f"{_scores(best.scores, best.task)} (epoch {best.epoch}, best validation)"),
        *_without_edges(measurements.get("baseline"), best.task),
        *link_report.popularity_rows(measurements.get("compared")),
        *(("left out", f"{split}: {what}") for split, what in measurements.get("left_out", {}).items()),
        *class_report.threshold_row(measurements.get("threshold")),
        *class_report.calibration_row(measurements.get("calibration")),
        *_smoothed(measurements.get("correct_and_smooth")),
        ("peak memory", _memory(measurements["peak_bytes"], one_process)),
        ("remote rows", _remote(measurements["live_remote_buffers"], run.graph, n_ranks)),
        ("sent", ", ".join(f"{phase} {_mib(n)}" for phase, n in measurements["sent_bytes"].items()) or "nothing"),
        ("files", str(run_dir)),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _links(counts):
    """Yield a row, (name, text), of the table printed after training: `counts`, the numbers of links by split. None yields nothing."""
    if counts:
        yield "links", f"{counts['train']:,} to train on, {counts['val']:,} to validate, {counts['test']:,} to test"


def _minibatches(batches, n_ranks, measurements):
    """Yield rows (name, text) of the table printed after training: the numbers of minibatch steps, and the hits of the halo caches.
    `batches` has the settings of the minibatches; None stands for a full-batch run, which yields nothing. `measurements` are the run's
    measured values by name, and `n_ranks` is the number of ranks.
    """
    if not batches:
        return
    uneven = ""
    if measurements["imbalance"] is not None and n_ranks > 1:
        uneven = f"; the slowest rank's time / mean {measurements['imbalance']:.2f} (median)"
    yield "steps", f"{measurements['steps']:,} of at most {batches.batch_size:,} seeds{uneven}"
    if "hit_rate" in measurements:
        hits = ", ".join("-" if rate is None else f"{100 * rate:.1f}" for rate in measurements["hit_rate"])
        yield "caches", (f"{hits} % hits, by layer; {sum(measurements['rows_pushed']):,} rows pushed, "
                         f"{_mib(measurements['bytes_pushed'])}")


def _message_flow(measurements):
    """Yield rows, (name, text), of the table printed after training: for each layer of a message-flow graph, its numbers of rows
    and edges beside the numbers of the full graph.
    """
    if "message_flow" not in measurements:
        return
    full = measurements["message_flow"]["graph"]
    for number, layer in enumerate(measurements["message_flow"]["layers"], 1):
        words = (f"{layer[name]:,} of {full[name]:,} {name.replace('_', ' ')}" for name in full if full[name])
        yield f"layer {number}", ", ".join(words)


def _relations(measurements):
    """Yield rows, (name, text), of the table printed after training: for each relation, if its weight matrix is applied before the
    aggregation ("inside" the messages) or after it (aggregation "first"), and the cost of both orders.
    """
    for evaluation in measurements.get("relations", ()):
        costs = ", ".join(f"{order} {_mib(evaluation[f'{order}_bytes'])}" for order in ("inside", "first"))
        yield "relation", (f"{'.'.join(evaluation['relation'])}, {evaluation['n_in']} to {evaluation['n_out']}: "
                           f"weight {evaluation['name']} ({costs} a step)")


_OUTPUTS = {"classify": "classes", "multilabel": "labels", "regress": "targets"}
_PATIENT = "; ended early: no better epoch in the last {}"


def _scores(scores, task):
    """Return a text with the metric of `task` on train, val and test, from `scores`, {"SPLIT_METRIC": value}."""
    return _by_split({split: scores[f"{split}_{task.key}"] for split in ("train", "val", "test")}, task)


def _by_split(values, task):
    named = (("train", values["train"]), ("validation", values["val"]), ("test", values["test"]))
    return ", ".join(f"{name} {_share(value) if task.metric_kind.share or value is None else f'{value:.6g}'}"
                     for name, value in named)


def _without_edges(scores, task):
    """Yield rows, (name, text), of the table printed after training, with the `scores` of baselines that use no edges, {baseline:
    {split: score}}. None yields nothing.
    """
    kind = "linear" if task.form.name == "regress" else "logistic"
    if scores and "features" in scores:
        yield "no edges", f"{_by_split(scores['features'], task)} ({kind} regression on the features)"
    if scores:
        prior = "mean of the training rows" if kind == "linear" else "shares of the classes"
        yield "prior", f"{_by_split(scores['prior'], task)} ({prior})"


def _smoothed(scores):
    """Yield a row, (name, text), of the table printed after training: `scores`, the accuracies after Correct and Smooth. None
    yields nothing.
    """
    if scores:
        note = "kept" if scores["kept"] else "not kept: validation was better before"
        yield "smoothed", (f"train {_share(scores['train_accuracy'])}, validation {_share(scores['val_accuracy'])}, "
                           f"test {_share(scores['test_accuracy'])} ({note})")


def _share(value):
    return "-" if value is None else f"{100 * value:.2f} %"


def _mib(n):
    return f"{n / 2**20:,.1f} MiB"


def _memory(peaks, one_process):
    """Return a text about `peaks`, the peak memory of each rank in bytes: all numbers or, of more than 4 ranks, the range and the
    median. If `one_process`, all ranks share one number.
    """
    if one_process:
        return f"{_mib(max(peaks))} (all ranks in one process)"
    if len(peaks) > 4:
        return f"{_mib(min(peaks))} to {_mib(max(peaks))}, median {_mib(statistics.median(peaks))}"
    return ", ".join(map(_mib, peaks)) + (" (by rank)" if len(peaks) > 1 else "")


def _remote(live, options, n_ranks):
    if n_ranks == 1:
        return "none: one part"
    bound = most_peers_held(options, n_ranks)
    note = f"mode {options.mode} promises " + ("no bound" if bound is None else f"at most {bound}")
    return f"of at most {live} peer{'' if live == 1 else 's'} at once; {note}"


def summary(run, n_ranks, data, measurements, best, times):
    """Return the contents of summary.json, a dict, of a `run` on `n_ranks` ranks: facts about its `data`, the `measurements`, the
    scores of the `best` epoch and the `times` in seconds.
    """
    versions = {"sarlite": sys.modules["sarlite"].__version__, "python": platform.python_version(),
                "numpy": np.__version__}
    return finite({"ranks": n_ranks, "mode": str(run.graph.mode), "prefetch": run.graph.prefetch, "data": data,
                    "seconds": times, "best": {"epoch": best.epoch, "scores": best.scores},
                    "metric": best.task.metric, "key": best.task.key, "lower": lower_is_better(best.task.metric),
                    "counted": measurements, "versions": versions, "processor": platform.machine(),
                    "instruction_set": kernels.instruction_set()})


def finite(value):
    """Return `value`, which may be nested dicts and lists, in the types of JSON. Numbers that are not finite become None.

    NumPy scalars become Python numbers, tuples become lists, and keys become str.

    Examples
    --------
    >>> finite({"loss": float("nan"), "counts": (1, np.int64(2))})
    {'loss': None, 'counts': [1, 2]}
    """
    if isinstance(value, dict):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_line(run, n_ranks, measurements, best):
    """Return the line of JSON that a run with --json prints last: the scores of the `best` epoch, and the `measurements`."""
    key = best.task.key
    return json.dumps({"ranks": n_ranks, "mode": str(run.graph.mode), "seed": run.training.seed,
                       f"test_{key}": best.scores[f"test_{key}"],
                       f"best_val_{key}": best.scores[f"val_{key}"], **measurements})
