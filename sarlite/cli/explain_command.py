"""Explain a trained model's predictions of some nodes: the features and the edges that matter, as a table and a page."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sarlite import kernels
from sarlite.cli import config
from sarlite.cli.config import naming_flags
from sarlite.cli.explain_page import page
from sarlite.cli.explanation import KINDS, METHODS, Explainer, Explanation, X, label_names
from sarlite.cli.option import option
from sarlite.cli.options import RunOptions
from sarlite.cli.train_command import main_on_ranks
from sarlite.cli.trained_run import TAKEN, CheckpointOptions, TrainedRun, input_rows, load_data, open_run, outputs_in_time, restore_model
from sarlite.comm import Communicator, together
from sarlite.comm.working import working
from sarlite.command import refuse_input, show, suggestion
from sarlite.data import result_table
from sarlite.data.graph_tables import NODE
from sarlite.errors import ConfigError, needs, writing
from sarlite.files import try_whole, write_whole
from sarlite.graph.graph_set import GraphSet
from sarlite.graph.hetero import NodeType
from sarlite.graph.reach import Reach
from sarlite.numerics import using
from sarlite.numerics.exact_sum import named
from sarlite.tape import Tensor, no_grad
from sarlite.tasks.link_edges import Linked
from sarlite.train import predictions
from sarlite.train.attribution import Inputs
from sarlite.train.batch_sources import temporal_of
from sarlite.train.load import Shard
from sarlite.train.neighborhood import Moment, Neighborhood, Neighborhoods, NodeRowTable
from sarlite.train.trainer_arguments import check_output
from sarlite.types import Array
from sarlite.user_code import errors_of

_MOST_SHOWN = 20


@dataclass(frozen=True)
class ExplainOptions(CheckpointOptions):
    """Options of the command that explains: the nodes, the output files, and the score that is explained."""

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
    steps: int = option(64, "places on the path of integrated gradients", metavar="N", least=1, most=1024)
    occlude: int = option(1000, "edges of a node that are left out, one at a time: those with the largest integrated "
                          "gradients", metavar="N", least=0)

    def __post_init__(self) -> None:
        if self.out is None and self.html is None:
            raise ConfigError("--out FILE or --html FILE.html is missing: explain writes a table, a page, or both")
        if self.out is not None and not self.out.endswith(result_table.SUFFIXES):
            raise ConfigError(f"--out {self.out}: must end in {', '.join(result_table.SUFFIXES)}, which names its format")
        if self.out is not None and self.out.endswith(".parquet"):
            needs("pyarrow", f"--out {self.out}")

    @property
    def files(self) -> dict[str, str]:
        """The files to write, by option."""
        return {name: path for name, path in (("out", self.out), ("html", self.html)) if path is not None}


def parse(argv: Sequence[str] | None) -> tuple[RunOptions, ExplainOptions]:
    """Return the options of a run without a checkpoint, and of this command.

    Raises
    ------
    ConfigError
        An unknown flag, a bad value, or a file that is not named.
    """
    own, given = config.parse_further(
        argv, ExplainOptions, ("checkpoint", "nodes"), TAKEN, prog="python -m sarlite.explain",
        usage="%(prog)s --checkpoint RUN --nodes FILE --html FILE.html [options]", description=__doc__)
    needs("safetensors", "a checkpoint")
    for name, path in own.files.items():
        refuse_input(f"--{name}", path, {"--checkpoint": own.checkpoint, "--nodes": own.nodes})
    if own.out is not None and own.html is not None and Path(own.out).absolute() == Path(own.html).absolute():
        raise ConfigError(f"--html {own.html}: this is the file of --out: name another file")
    return config.resolve(given), own.with_given(given)


@naming_flags
def explain(comm: Communicator, without_checkpoint: RunOptions, config: ExplainOptions, tick: Any = lambda: None,
            interrupts: Any = None, at_once: int = 1 << 20) -> None:
    """Explain the predictions of some nodes by a checkpoint's model, and write a table and a page. Collective.

    Each node is explained on its neighbourhood, the nodes and edges from which messages reach it, which one rank gathers
    from all ranks. Ranks take turns, so that N ranks explain N nodes at once.

    Raises
    ------
    SarliteError
        On every rank together: the checkpoint cannot be read, does not fit the data, or is of links or graphs; a node is
        none; the prediction on a neighbourhood is another one; or a file cannot be written. What stood there before is
        intact then.

    Notes
    -----
    Memory: as a forward pass, 33 bytes an edge, and the neighbourhoods of as many nodes as there are ranks. Time: for each
    node `steps` forward and backward passes for features and for edges each, and a forward pass for each feature and each
    edge that is left out.
    """
    trained = open_run(comm, config, partial(_check_task, config))
    together(comm, lambda: _check_files(config) if comm.rank == 0 else None)
    tick()
    scratch = Path(next(iter(config.files.values()))).absolute().parent
    part = load_data(comm, trained, without_checkpoint.machine.threads, scratch, {"in_time": True}, tick)
    together(comm, lambda: _check_data(trained, part))
    end = Linked.of_nodes(part.graph, part.target, part.names).ends[0][0]
    wanted = predictions.nodes(comm, config.nodes, end, part.graph, at_once)
    if not wanted.n:
        raise ConfigError(f"--nodes {config.nodes}: no node in it")
    with working(tick), errors_of(trained.run.model.spec), kernels.Buffers():
        found = _explained(comm, trained, part, wanted)
    together(comm, lambda: _write(config, found) if comm.rank == 0 else None)


def _check_task(config, options):
    """Raise a ConfigError if the run's predictions are not of nodes, or --label is none of its outputs."""
    task = options.training.task
    if task == "link" or options.links.edge_labels is not None:
        what = "links" if task == "link" else "labels of edges"
        raise ConfigError(f"checkpoint {config.checkpoint}: the run predicts {what}, but explain is for predictions of nodes")


def _check_files(config):
    for name, path in config.files.items():
        with writing(path, name, ConfigError):
            try_whole(path)


def _check_data(trained, part):
    config = trained.config
    if isinstance(part.graph, GraphSet):
        raise ConfigError(f"checkpoint {config.checkpoint}: the run predicts labels of graphs, but explain is for predictions "
                          "of nodes")
    known = label_names(trained, trained.meta["data"]["classes"])
    if config.label is not None and config.label not in known:
        raise ConfigError(f"--label {config.label}: the outputs are {', '.join(known[:20])}"
                          f"{suggestion(config.label, known)}")


def _explained(comm: Communicator, trained: TrainedRun, part: Shard, wanted: Any) -> list[Explanation]:
    """Return the explanations of all nodes, in the order of the file, on rank 0. Collective."""
    model = restore_model(comm, trained, part)
    x, reach = input_rows(comm, trained, part, model), Reach()
    with using(named(trained.run.training.numerics, comm)), no_grad():
        tensors = {name: Tensor(own, constant=True) for name, own in x.items()} if isinstance(x, dict) else Tensor(x, constant=True)
        output = model(reach.of(part.graph), tensors)
    check_output(output, type(model).__name__, part.graph.n_dst, trained.meta["data"]["classes"])
    outputs: Array = _in_order(comm, wanted, output.data)
    moments: Sequence[Moment | None] = [None] * wanted.n
    if trained.run.batches and trained.run.batches.temporal:
        outputs, moments = _in_time(comm, trained, part, model, x, wanted)
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
    ids = comm.bcast(wanted.ids)
    found: list[Explanation] = []
    for first in range(0, wanted.n, comm.size):
        seen = zip(ids[first : first + comm.size].tolist(), moments[first:])
        around = [neighborhoods.around(target, node, reach.hops + reach.of_source_degrees, moment) for node, moment in seen]
        own = list(zip(outputs[first:], around))[comm.rank : comm.rank + 1]
        del around
        pieces = comm.allgather(together(comm, partial(_explain_each, explainer, own)))
        found += [each for piece in pieces for each in piece] if comm.rank == 0 else []
    return found


def _in_time(comm: Communicator, trained: TrainedRun, part: Shard, model: Any, x: Any, wanted: Any) -> tuple[Array, list[Moment]]:
    """Return the outputs of the wanted nodes, each at its own time, and the moments that they see. Collective.

    A model that was trained on the latest edges is explained on these. Of edges that are drawn, all are explained.
    """
    batches: Any = trained.run.batches
    temporal, fanouts = temporal_of(batches.temporal, part), list(batches.eval_fanouts or batches.fanouts)
    if temporal.pick == "uniform" or batches.sampler == "full":
        fanouts = [-1] * len(fanouts)
    if len(set(fanouts)) > 1:
        raise ConfigError(f"checkpoint {trained.config.checkpoint}: its layers pick {', '.join(map(str, fanouts))} of the latest "
                          "edges, but a prediction is explained on one graph: --fanouts or --eval-fanouts of equal numbers")
    if comm.rank == 0:
        show("each node is explained at its own time, on " + (f"the latest {fanouts[0]} edges of each node up to then"
             if fanouts[0] >= 0 else "all edges up to then" + ", of which predictions sample some" * (batches.sampler != "full")))
    with using(named(trained.run.training.numerics, comm)), no_grad():
        outputs = outputs_in_time(trained, part, model, x, temporal, fanouts)
    seeds = part.times[part.target] if temporal.seeds is None else np.asarray(temporal.seeds)
    return _in_order(comm, wanted, outputs), [Moment(time, fanouts[0]) for time in _in_order(comm, wanted, seeds).tolist()]


def _times(part: Shard) -> dict[str, NodeRowTable]:
    """Return the times of this rank's nodes, by node type."""
    ids = part.graph.graph.node_ids if isinstance(part.graph, NodeType) else {NODE: part.graph.dst_ids}
    return {name: NodeRowTable(name, ids[name], times) for name, times in part.times.items()}


def _explain_each(explainer: Explainer, nodes: Sequence[tuple[Array, Neighborhood]]) -> list[Explanation]:
    return [explainer.explain(output, around) for output, around in nodes]


def _tables(part: Shard, x: Any, model: Any) -> dict[str, NodeRowTable]:
    """Return this rank's rows of features by node type, and its learned rows by parameter."""
    relational = isinstance(part.graph, NodeType)
    ids = part.graph.graph.node_ids if relational else {NODE: part.graph.dst_ids}
    tables = {X + name: NodeRowTable(name, ids[name], rows) for name, rows in (x if relational else {NODE: x}).items()}
    return tables | {name: NodeRowTable(own.node_type if relational else NODE, own.ids, own.data)
                     for name, own in model.named_parameters() if own.ids is not None}


def _baseline(comm: Communicator, part: Shard, tables: dict[str, NodeRowTable], trained: TrainedRun) -> tuple[Inputs, str]:
    """Return the mean of each table's rows, with known labels hidden, and words on which rows the means are of. Collective.

    Rows of the target's features are those of training nodes, if there are any.
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
    of_rows = f"the {n_train:,} training nodes" if n_train else "all nodes, as the data have no training nodes"
    learned = {name: mean for name, mean in means.items() if not name.startswith(X)}
    return Inputs({name.removeprefix(X): mean for name, mean in means.items() if name not in learned}, learned), of_rows


def _in_order(comm: Communicator, wanted: Any, output: Array) -> Array:
    """Return the outputs of the wanted nodes, in the order of the file, on every rank. Collective."""
    rows = np.empty((wanted.n, *output.shape[1:]), output.dtype)
    for places, own in comm.allgather((wanted.places, output[wanted.rows])):
        rows[places] = own
    return rows


def _write(config: ExplainOptions, found: list[Explanation]) -> None:
    """Write the table and the page, and print each node's score and the sums of its attributions."""
    if config.out is not None:
        result_table.write_pieces(config.out, _NAMES, [_columns(found)])
        show(f"{config.out}: {sum(len(own.attributions) for own in found):,} rows")
    if config.html is not None:
        with writing(config.html, "html"):
            write_whole(config.html, page(found, config.score).encode(errors="backslashreplace"))
        show(f"{config.html}: {len(found):,} nodes")
    for own in found[:_MOST_SHOWN]:
        show(f"{own.node}: {config.score} of {own.label} {own.score:.4f}; {_told(own, 'features', own.features)}; "
             f"{_told(own, 'edges', own.edges)}")
    if len(found) > _MOST_SHOWN:
        show(f"and {len(found) - _MOST_SHOWN:,} more nodes")
    _warn(config, found)


def _told(own: Explanation, what: str, total: Any) -> str:
    return f"without {what} {total.without:.4f}, attributions add up to {total.sum:+.4f}, off by {abs(own.missed(total)):.1e}"


def _warn(config: ExplainOptions, found: list[Explanation]) -> None:
    """Print warnings on attributions that are not complete, and on edges that were not left out."""
    off = [own for own in found for total in (own.features, own.edges)
           if abs(own.missed(total)) > 0.02 * max(abs(own.score - total.without), abs(own.score), 1e-6)]
    if off:
        show(f"warning: the integrated gradients of {len({own.node for own in off}):,} nodes, such as {off[0].node}, miss the change of "
             f"the score by more than 2 %: --steps {2 * config.steps} comes closer", sys.stderr)
    cut = [own for own in found if own.n_occluded < own.n_edges]
    if cut:
        show(f"{len(cut):,} nodes have more edges than --occlude {config.occlude}, such as {cut[0].node} with {cut[0].n_edges:,}: "
             "those with the largest integrated gradients were left out", sys.stderr)


_NAMES = ("node", "label", "kind", "name", "source", "destination", "method", "attribution", "rank")


def _columns(found: list[Explanation]) -> list[Any]:
    """Return the columns of the table, in the order of `_NAMES`."""
    rows = [(own.node, own.label, kind, each.name, *([end.id for end in each.ends] or ["", ""]), method, each.value, rank)
            for own in found for kind in KINDS for method in METHODS for rank, each in enumerate(own.of(kind, method), 1)]
    *words, values, ranks = zip(*rows) if rows else [()] * len(_NAMES)
    return [*map(list, words), np.array(values, np.float64), np.array(ranks, np.int64)]


def main(argv: Sequence[str] | None = None) -> int:
    """Explain as the command line says; return the exit status."""
    return main_on_ranks(argv, parse, lambda: explain)


if __name__ == "__main__":
    sys.exit(main())
