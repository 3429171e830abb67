"""Explain a trained model's predictions of some nodes: the features and the edges that matter, as a table and a page."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.cli import config
from sarlite.cli.config import naming_flags
from sarlite.cli.explain_page import page
from sarlite.cli.explanation import KINDS, METHODS, Explainer, Explanation, Total, X, label_names
from sarlite.cli.option import option
from sarlite.cli.options import RunOptions
from sarlite.cli.settings import settings
from sarlite.cli.train_command import main_on_ranks
from sarlite.cli.trained_run import (
    OF_THE_RUN,
    TAKEN,
    CheckpointOptions,
    Features,
    TrainedRun,
    input_rows,
    load_data,
    open_run,
    outputs_in_time,
    restore_model,
)
from sarlite.comm import Communicator, together
from sarlite.comm.working import working
from sarlite.command import refuse_input, show, suggestion
from sarlite.data import result_table
from sarlite.data.graph_tables import NODE
from sarlite.errors import ConfigError, import_optional, writing
from sarlite.files import atomic_write, check_writable
from sarlite.graph.graph_set import GraphSet
from sarlite.graph.hetero import NodeType
from sarlite.graph.reach import Reach
from sarlite.nn import Module
from sarlite.numerics import using
from sarlite.numerics.exact_sum import named
from sarlite.tape import Tensor, no_grad
from sarlite.tasks.link_edges import Linked
from sarlite.train import predictions
from sarlite.train.attribution import Inputs
from sarlite.train.batch_sources import temporal_of
from sarlite.train.load import Shard
from sarlite.train.neighborhood import Moment, Neighborhood, Neighborhoods, NodeRowTable
from sarlite.train.predictions import PredictionRequest
from sarlite.train.trainer_arguments import check_output
from sarlite.types import Array
from sarlite.user_code import errors_of

_MOST_SHOWN = 20
"""Largest number of nodes for which a line is printed."""


@dataclass(frozen=True)
class ExplainOptions(CheckpointOptions):
    """Options of the explaining command: nodes, output files, explained score and effort."""

    nodes: str = option(None, "nodes whose predictions are explained: an id of the data on each line, or .npy",
                        metavar="FILE")
    out: str | None = option(None, "table of attributions: FILE.csv, .jsonl or .parquet; an old file is replaced",
                             metavar="FILE")
    html: str | None = option(None, "page with each node's features as bars and a drawing of its neighbourhood; an old "
                              "file is replaced", metavar="FILE.html")
    label: str | None = option(None, "class, label or number of the output that is explained", metavar="NAME",
                               otherwise="the predicted class")
    score: str = option("log-odds", "what is explained: log(p / (1 - p)) of the probability p, p itself, or the model's output "
                        "before softmax; of a regression the number", choices=("log-odds", "probability", "output"))
    top: int = option(10, "features and edges of each node in the table and on the page", metavar="K", least=1)
    steps: int = option(64, "points on the path of integrated gradients", metavar="N", least=1, most=1024)
    occlude: int = option(1000, "number of a node's edges that are left out, one at a time: the edges with the largest "
                          "integrated gradients", metavar="N", least=0)

    def __post_init__(self) -> None:
        if self.out is None and self.html is None:
            raise ConfigError("--out FILE or --html FILE.html is missing: explain writes a table, a page, or both")
        if self.out is not None and not self.out.endswith(result_table.SUFFIXES):
            raise ConfigError(f"--out {self.out}: must end in {', '.join(result_table.SUFFIXES)}, which names its format")
        if self.out is not None and self.out.endswith(".parquet"):
            import_optional("pyarrow", f"--out {self.out}")

    @property
    def files(self) -> dict[str, str]:
        """Paths of the requested output files by option: "out" for the table and "html" for the page."""
        return {name: path for name, path in (("out", self.out), ("html", self.html)) if path is not None}


def parse(argv: Sequence[str] | None) -> tuple[RunOptions, ExplainOptions]:
    """Return (training options, the command's own options), both from the command line `argv`; None stands for the arguments of the
    process.

    Raises
    ------
    ConfigError
        A flag is unknown, a value is invalid, a needed flag is missing, or an output file is also an input file.
    """
    options, values = config.parse_further(
        argv, ExplainOptions, ("checkpoint", "nodes"), TAKEN, OF_THE_RUN, prog="python -m sarlite.explain",
        usage="%(prog)s --checkpoint RUN --nodes FILE --html FILE.html [options]", description=__doc__)
    import_optional("safetensors", "a checkpoint")
    for name, path in options.files.items():
        refuse_input(f"--{name}", path, {"--checkpoint": options.checkpoint, "--nodes": options.nodes})
    if options.out is not None and options.html is not None and Path(options.out).absolute() == Path(options.html).absolute():
        raise ConfigError(f"--html {options.html}: this is also the file of --out: name another file")
    return config.resolve(values), options.with_overrides(values)


@naming_flags
def explain(comm: Communicator, training_options: RunOptions, config: ExplainOptions,
            tick: Callable[[], object] = lambda: None, interrupts: object = None, at_once: int = 1 << 20) -> None:
    """Explain a trained model's predictions for the nodes in `config`, and write a table and a page. `training_options` are the training
    options of the command line; `tick()` is called whenever this rank makes progress. Rank 0 sends `at_once` ids in one message;
    `interrupts` is ignored. Collective.

    The attributions of a node are computed on its neighbourhood: the nodes and edges whose messages reach the node. One
    rank gathers the neighbourhood from all ranks, so N ranks explain N nodes at the same time.

    Parameters
    ----------
    comm : Communicator
    training_options : RunOptions
        Training options of the command line, for options that the checkpoint does not have.
    config : ExplainOptions
    tick : callable
        tick() is called whenever this rank makes progress.
    interrupts : Interrupts, optional
        Not used.
    at_once : int
        Number of ids of --nodes that rank 0 sends in one message.

    Raises
    ------
    SarliteError
        On every rank together: the checkpoint cannot be read, does not fit the data, or predicts links or graphs; a node
        does not exist; the prediction on a neighbourhood differs from the prediction on the whole graph; or a file cannot
        be written. Old output files are unchanged then.

    Notes
    -----
    Memory: a forward pass, 33 bytes per edge, and the neighbourhoods of as many nodes as there are ranks. Time for each
    node: `steps` forward and backward passes for features and as many for edges, and a forward pass for each feature and
    for each edge of the occlusion.
    """
    trained = _full_precision(open_run(comm, config, partial(_check_task, config)))
    together(comm, lambda: _check_files(config) if comm.rank == 0 else None)
    tick()
    scratch = Path(next(iter(config.files.values()))).absolute().parent
    part = load_data(comm, trained, training_options.machine.threads, scratch, {"in_time": True}, tick)
    together(comm, lambda: _check_data(trained, part))
    end = Linked.of_nodes(part.graph, part.target, part.names).ends[0][0]
    request = predictions.nodes(comm, config.nodes, end, part.graph, at_once)
    if not request.n:
        raise ConfigError(f"--nodes {config.nodes}: the file lists no node")
    with working(tick), errors_of(trained.run.model.spec), kernels.Buffers():
        explanations = _explained(comm, trained, part, request)
    together(comm, lambda: _write(config, explanations) if comm.rank == 0 else None)


def _full_precision(trained: TrainedRun) -> TrainedRun:
    """Return `trained` with float32 rows in messages between ranks (`row_dtype`) in place of bfloat16 or int8. Gradients ignore the
    rounding of such rows, so integrated gradients would not add up to the change of the score.
    """
    options = replace(trained.options, schedule=replace(trained.options.schedule, rows="float32"))
    return trained._replace(options=options, run=settings(options))


def _check_task(config: ExplainOptions, options: RunOptions) -> None:
    """Raise a ConfigError if the trained run with these `options` cannot be explained: it predicts links or labels of edges, or has
    --edge-recency.
    """
    task = options.training.task
    if task == "link" or options.links.edge_labels is not None:
        predicted = "links" if task == "link" else "labels of edges"
        raise ConfigError(f"checkpoint {config.checkpoint}: the run predicts {predicted}, but explain is for predictions of "
                          "nodes")
    if options.minibatch.edge_recency:
        raise ConfigError(f"checkpoint {config.checkpoint}: the run has --edge-recency, but explain does not compute recency")


def _check_files(config: ExplainOptions) -> None:
    """Raise a ConfigError if an output file in `config` cannot be written."""
    for name, path in config.files.items():
        with writing(path, name, ConfigError):
            check_writable(path)


def _check_data(trained: TrainedRun, part: Shard) -> None:
    """Raise a ConfigError if the data `part` are a set of graphs, or if --label is not the name of an output of the model."""
    config = trained.config
    if isinstance(part.graph, GraphSet):
        raise ConfigError(f"checkpoint {config.checkpoint}: the run predicts labels of graphs, but explain is for predictions "
                          "of nodes")
    names = label_names(trained, trained.meta["data"]["classes"])
    if config.label is not None and config.label not in names:
        raise ConfigError(f"--label {config.label}: the outputs are {', '.join(names[:20])}"
                          f"{suggestion(config.label, names)}")


def _explained(comm: Communicator, trained: TrainedRun, part: Shard, request: PredictionRequest) -> list[Explanation]:
    """Return on rank 0 the explanations of the nodes in `request`, in the order of the file --nodes, and [] on other ranks. The trained
    model is applied to the data `part`. Collective.
    """
    model = restore_model(comm, trained, part)
    x, reach = input_rows(comm, trained, part, model), Reach()
    with using(named(trained.run.training.numerics, comm)), no_grad():
        constant = partial(Tensor, constant=True)
        tensors = {name: constant(rows) for name, rows in x.items()} if isinstance(x, dict) else constant(x)
        output = model(reach.of(part.graph), tensors)
    check_output(output, type(model).__name__, part.graph.n_dst, trained.meta["data"]["classes"])
    outputs: Array = _in_order(comm, request, output.data)
    moments: Sequence[Moment | None] = [None] * request.n
    if trained.run.batches and trained.run.batches.temporal:
        outputs, moments = _in_time(comm, trained, part, model, x, request)
    powers = getattr(model, "powers", None)
    if powers is not None:
        x, reach.n_layers, reach.of_source_degrees = part.rows.features, max(powers), True
    tables = _tables(part, x, model)
    baseline, of_rows = _baseline(comm, part, tables, trained)
    explainer = Explainer(trained, part, model, baseline, reach.hops)
    if comm.rank == 0:
        show(f"baseline: columns at their means over {of_rows}")
    neighborhoods = Neighborhoods(comm, part.graph, tables, _times(part))
    target = part.target if isinstance(part.graph, NodeType) else NODE
    ids = comm.bcast(request.ids)
    explanations: list[Explanation] = []
    for first in range(0, request.n, comm.size):
        nodes = zip(ids[first : first + comm.size].tolist(), moments[first:])
        around = [neighborhoods.around(target, node, reach.hops + reach.of_source_degrees, moment) for node, moment in nodes]
        of_this_rank = list(zip(outputs[first:], around))[comm.rank : comm.rank + 1]
        del around
        pieces = comm.allgather(together(comm, partial(_explain_each, explainer, of_this_rank)))
        explanations += [explanation for piece in pieces for explanation in piece] if comm.rank == 0 else []
    return explanations


def _in_time(comm: Communicator, trained: TrainedRun, part: Shard, model: Callable[..., Tensor], x: Features,
             request: PredictionRequest) -> tuple[Array, list[Moment]]:
    """Compute outputs for the nodes in `request`, each from edges up to the node's own time, with `model` on the input rows `x`. Return
    (outputs, moments): first a row for each node; then a `Moment` (limit for edges) for each node: the node's time, and how many latest
    edges of a node count. Collective.
    """
    batches: Any = trained.run.batches
    temporal, fanouts = temporal_of(batches, part), list(batches.eval_fanouts or batches.fanouts)
    if temporal.pick == "uniform" or batches.sampler == "full":
        fanouts = [-1] * len(fanouts)
    if len(set(fanouts)) > 1:
        raise ConfigError(f"checkpoint {trained.config.checkpoint}: its layers take {', '.join(map(str, fanouts))} of the latest "
                          "edges, but an explanation needs one graph for all layers: train with equal --fanouts or "
                          "--eval-fanouts")
    if comm.rank == 0:
        show("each node is explained at its own time, on " + (f"the latest {fanouts[0]} edges of each node up to then"
             if fanouts[0] >= 0 else "all edges up to then" + ", of which predictions sample some" * (batches.sampler != "full")))
    with using(named(trained.run.training.numerics, comm)), no_grad():
        outputs = outputs_in_time(trained, part, model, x, temporal, fanouts)
    seeds = part.times[part.target] if temporal.seeds is None else np.asarray(temporal.seeds)
    return _in_order(comm, request, outputs), [Moment(time, fanouts[0]) for time in _in_order(comm, request, seeds).tolist()]


def _times(part: Shard) -> dict[str, NodeRowTable]:
    """Return {node type: table that has, for each of this rank's nodes in the data `part`, a row with the node's time}."""
    ids = part.graph.graph.node_ids if isinstance(part.graph, NodeType) else {NODE: part.graph.dst_ids}
    return {name: NodeRowTable(name, ids[name], times) for name, times in part.times.items()}


def _explain_each(explainer: Explainer, nodes: Sequence[tuple[Array, Neighborhood]]) -> list[Explanation]:
    return [explainer.explain(output, around) for output, around in nodes]


def _tables(part: Shard, x: Features, model: Module) -> dict[str, NodeRowTable]:
    """Return this rank's tables of rows by name: the input rows `x`, named "x " + node type, and the rows that `model` has learned
    for nodes, named by parameter.
    """
    relational = isinstance(part.graph, NodeType)
    ids = part.graph.graph.node_ids if relational else {NODE: part.graph.dst_ids}
    tables = {X + name: NodeRowTable(name, ids[name], rows) for name, rows in (x if relational else {NODE: x}).items()}
    return tables | {name: NodeRowTable(parameter.node_type if relational else NODE, parameter.ids, parameter.data)
                     for name, parameter in model.named_parameters() if parameter.ids is not None}


def _baseline(comm: Communicator, part: Shard, tables: dict[str, NodeRowTable], trained: TrainedRun) -> tuple[Inputs, str]:
    """Return (baseline, text): first the baseline of integrated gradients, a mean row for each of `tables`; then a text that says which
    nodes were averaged. A mean is over all nodes of a type or, for the type with labels, over the training nodes, if any. Columns of label
    inputs are 0. Collective.
    """
    target, train = X + (part.target if isinstance(part.graph, NodeType) else NODE), np.asarray(part.rows.train)
    n_train = sum(comm.allgather(int(np.count_nonzero(train))))
    means = {}
    for name, table in tables.items():
        rows = table.rows[train] if name == target and n_train else table.rows
        sums = np.concatenate([rows.sum(0, dtype=np.float64), [len(rows)]])
        *total, n = comm.allreduce(sums)
        means[name] = np.array(total) / max(n, 1)
    if trained.run.training.label_inputs:
        means[target][-trained.meta["data"]["classes"]:] = 0
    of_rows = f"the {n_train:,} training nodes" if n_train else "all nodes, because the data have no training nodes"
    learned = {name: mean for name, mean in means.items() if not name.startswith(X)}
    return Inputs({name.removeprefix(X): mean for name, mean in means.items() if name not in learned}, learned), of_rows


def _in_order(comm: Communicator, request: PredictionRequest, output: Array) -> Array:
    """Return, on every rank, the rows of `output` for the nodes in `request`, gathered from all ranks, in the order of the file
    --nodes. `output` has the rows of this rank's nodes. Collective.
    """
    rows = np.empty((request.n, *output.shape[1:]), output.dtype)
    for places, rows_of_rank in comm.allgather((request.places, output[request.rows])):
        rows[places] = rows_of_rank
    return rows


def _write(config: ExplainOptions, explanations: list[Explanation]) -> None:
    """Write the table and the page of `explanations` to the files in `config`, and print each node's score and the sums of its
    attributions.
    """
    if config.out is not None:
        result_table.write_pieces(config.out, _NAMES, [_columns(explanations)])
        show(f"{config.out}: {sum(len(explanation.attributions) for explanation in explanations):,} rows")
    if config.html is not None:
        with writing(config.html, "html"):
            atomic_write(config.html, page(explanations, config.score).encode(errors="backslashreplace"))
        show(f"{config.html}: {len(explanations):,} node{'s' * (len(explanations) != 1)}")
    for explanation in explanations[:_MOST_SHOWN]:
        show(f"{explanation.node}: {config.score} of {explanation.label} {explanation.score:.4f}; "
             f"{_sum_line(explanation, 'features', explanation.features)}; {_sum_line(explanation, 'edges', explanation.edges)}")
    if len(explanations) > _MOST_SHOWN:
        show(f"and {len(explanations) - _MOST_SHOWN:,} more nodes")
    _warn(config, explanations)


def _sum_line(explanation: Explanation, subject: str, total: Total) -> str:
    return (f"without {subject} {total.without:.4f}, attributions add up to {total.sum:+.4f}, off by "
            f"{abs(explanation.missed(total)):.1e}")


def _warn(config: ExplainOptions, explanations: list[Explanation]) -> None:
    """Print a warning if the integrated gradients of `explanations` miss the change of a score by more than 2 %, and a line if
    --occlude leaves some edges out.
    """
    off = [explanation for explanation in explanations for total in (explanation.features, explanation.edges)
           if abs(explanation.missed(total)) > 0.02 * max(abs(explanation.score - total.without), abs(explanation.score), 1e-6)]
    if off:
        show(f"warning: the integrated gradients of {len({each.node for each in off}):,} nodes, such as {off[0].node}, miss the "
             f"change of the score by more than 2 %: --steps {2 * config.steps} comes closer", sys.stderr)
    cut = [explanation for explanation in explanations if explanation.n_occluded < explanation.n_edges]
    if cut:
        show(f"{len(cut):,} nodes have more edges than --occlude {config.occlude}, such as {cut[0].node} with {cut[0].n_edges:,}: "
             "only the edges with the largest integrated gradients have an occlusion", sys.stderr)


_NAMES = ("node", "label", "kind", "name", "source", "destination", "method", "attribution", "rank")


def _columns(explanations: list[Explanation]) -> list[list[str] | Array]:
    """Return the columns of the table with all attributions of `explanations`, in the order of the names in `_NAMES`."""
    rows = [(explanation.node, explanation.label, kind, attribution.name, *([end.id for end in attribution.ends] or ["", ""]),
             method, attribution.value, rank)
            for explanation in explanations for kind in KINDS for method in METHODS
            for rank, attribution in enumerate(explanation.of(kind, method), 1)]
    *words, values, ranks = zip(*rows) if rows else [()] * len(_NAMES)
    return [*map(list, words), np.array(values, np.float64), np.array(ranks, np.int64)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m sarlite.explain` and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Command line arguments; by default the arguments of the process.
    """
    return main_on_ranks(argv, parse, lambda: explain)


if __name__ == "__main__":
    sys.exit(main())
