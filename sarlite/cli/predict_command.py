"""Write a trained model's outputs for the nodes, links or graphs of a data set, or the rows of one of its layers."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from sarlite import kernels
from sarlite.cli import config
from sarlite.cli.config import naming_flags
from sarlite.cli.option import option
from sarlite.cli.options import RunOptions
from sarlite.cli.run import task_of
from sarlite.cli.train_command import main_on_ranks
from sarlite.cli.trained_run import TAKEN, CheckpointOptions, input_rows, load_data, open_run, outputs_in_time, restore_model
from sarlite.comm import together
from sarlite.command import refuse_input, show
from sarlite.data import result_table
from sarlite.data.times import read_time
from sarlite.errors import CheckpointError, ConfigError, needs
from sarlite.graph.hetero import NodeType
from sarlite.numerics import using
from sarlite.numerics.exact_sum import named
from sarlite.tape import Tensor, no_grad, ops
from sarlite.tape.tensor import as_array
from sarlite.tasks import link_splits
from sarlite.tasks.link_data import known_links, without_links
from sarlite.tasks.link_edges import Linked
from sarlite.tasks.pair_task import PairTask
from sarlite.tasks.ranking import one_relation
from sarlite.tasks.recommend import ranks, top
from sarlite.tasks.time_split import time_split_of
from sarlite.train import predictions
from sarlite.train.batch_sources import temporal_of
from sarlite.train.predictions import PredictionRequest
from sarlite.train.trainer_arguments import check_output
from sarlite.user_code import errors_of


@dataclass(frozen=True)
class PredictOptions(CheckpointOptions):
    """Options of the command that predicts: the objects to predict and the output files."""

    out: str = option(
        None, "FILE.csv, .jsonl or .parquet: id, class, probabilities; or FILE.npy: probabilities, with the classes in "
        "FILE.labels.npy; an old file is replaced", metavar="FILE")
    nodes: str | None = option(None, "nodes to predict, in this order: an id of the data on each line, or .npy",
                               metavar="FILE", otherwise="all nodes")
    links: str | None = option(
        None, "for a run with --task link or --edge-labels: pairs of source and destination to predict, in this order; "
        "CSV, .npy or .parquet", metavar="FILE")
    top: int | None = option(
        None, "for a run with --task link: the K likeliest destinations of each node, without links of the data",
        metavar="K")
    rank: bool | None = option(
        None, "beside each score of --links, write the rank of the destination among all nodes that the data do not "
        "link to the source", otherwise="no")
    known: bool | None = option(None, "let links of the data be among --top, and count with --rank", otherwise="no")
    embeddings: int | None = option(
        None, "write the rows of this layer, from 1 on; the last layer's rows are no probabilities yet",
        metavar="LAYER")
    type: str | None = option(
        None, "for --embeddings of relational data: node type whose rows are written, with their ids", metavar="TYPE",
        otherwise="the type that has labels")
    at: str | None = option(
        None, "for a run with --temporal: time at which every row is predicted, a date or a number", metavar="TIME",
        otherwise="each row's own time")
    def __post_init__(self) -> None:
        if not self.out.endswith((".npy", *result_table.SUFFIXES)):
            raise ConfigError(f"--out {self.out}: must end in .npy, .csv, .jsonl or .parquet, which names its "
                              "format")
        if self.out.endswith(".parquet"):
            needs("pyarrow", f"--out {self.out}")
        if self.embeddings is not None and self.embeddings < 1:
            raise ConfigError(f"--embeddings {self.embeddings}: layers count from 1")
        if self.type is not None and self.embeddings is None:
            raise ConfigError(f"--type {self.type} means nothing without --embeddings")
        if self.top is not None and self.top < 1:
            raise ConfigError(f"--top {self.top}: at least 1 destination")
        if self.rank and self.links is None:
            raise ConfigError("--rank means nothing without --links")
        if self.known and self.top is None and not self.rank:
            raise ConfigError("--known means nothing without --top or --rank")


def parse(argv: Sequence[str] | None) -> tuple[RunOptions, PredictOptions]:
    """Return the options of a run without a checkpoint, and of this command.

    Raises
    ------
    ConfigError
        An unknown flag, a bad value, or a file that is not named.
    """
    own, given = config.parse_further(
        argv, PredictOptions, ("checkpoint", "out"), TAKEN, prog="python -m sarlite.predict",
        usage="%(prog)s --checkpoint RUN --out FILE.csv [options]", description=__doc__)
    needs("safetensors", "a checkpoint")
    for path in (own.out, *predictions.paths(own, "classify")):
        refuse_input("--out", path, {"--checkpoint": own.checkpoint, "--nodes": own.nodes, "--links": own.links})
    return config.resolve(given), own.with_given(given)


@naming_flags
def predict(comm, without_checkpoint, config, tick=lambda: None, interrupts=None, at_once=1 << 20):
    """Run a checkpoint's model on a data set and write each rank's rows into their places of one file. Collective.

    Of a run with --task link --out is the score of each pair of --links, (pairs,): what is larger is likelier. Messages
    pass along the edges that they passed along in the run's evaluation. With --rank --out is (pairs, 2) float64:
    scores, and ranks of the destinations among all nodes, where ties count half. Of a run with --edge-labels a row is
    of a pair.

    Files: --out, (rows, n_outputs) in the model's dtype: probabilities of classes or labels, or numbers. Before
    probabilities comes NAME.labels.npy beside it: the most likely class, (rows,) int64, or 0 and 1 of several labels,
    (rows, n_labels) uint8. With --embeddings a layer's rows alone. A table has all of that as columns, behind the nodes'
    ids; classes are told by name where they have names. Ids of --nodes are sent `at_once` at a time.
    Of --top a table has a row a pair; in place of labels the ids of destinations, (rows, K) int64, stand, -1 where
    there are no more.

    Raises
    ------
    SarliteError
        On every rank together: the checkpoint cannot be read, is of another model, or of other features or classes than
        the data; the data have values on edges that training did not use, and nothing says what is made of them; they
        lack what training used, such as label inputs; a node is none; a file cannot be written. What stood there before
        is intact then.

    Notes
    -----
    Memory: as training's forward pass, a copy of this rank's rows, and with --nodes on rank 0 8 bytes a row of it.
    """
    trained = open_run(comm, config, partial(_check_request, config))
    task, form, run, meta = trained.task, trained.form, trained.run, trained.meta
    together(comm, lambda: predictions.check_paths(config, form) if comm.rank == 0 else None)
    tick()
    part = load_data(comm, trained, without_checkpoint.machine.threads, Path(config.out).absolute().parent,
                     {"embeddings": config.embeddings, "in_time": _is_of_nodes(config)}, tick)
    together(comm, lambda: _check_type(config, run, part))
    of, known = Linked.of_nodes(part.graph, part.target, part.names), []
    if _of_pairs(run, part):
        of = together(comm, lambda: run.links.linked(part.graph, part.names))
        part = part._replace(graph=of.nodes)
        together(comm, lambda: _check_several(config, of))
    if task == "link":
        splits = run.links.splits(of, time_split_of(run, part))
        told = link_splits.digest(comm, *splits)
        together(comm, lambda: _check_links(config, run, meta, told, of.several))
        filtered = (config.top is not None or config.rank) and not config.known
        known = known_links(of, *splits, run.training.seed) if filtered else [np.empty(0, np.int64)] * len(of.ends)
        part = part._replace(graph=without_links(of, *splits, run.training.seed))
    if config.embeddings is not None and isinstance(part.graph, NodeType):
        node_type = together(comm, lambda: _type_of_rows(config, part))
        of = Linked.of_nodes(part.graph.graph.of(node_type), node_type, part.names)
    if config.links is not None:
        with_negatives = task == "link" and not config.rank
        wanted = predictions.pairs(comm, config.links, of, part.graph, at_once, with_negatives)
        part = part if config.rank else part._replace(graph=wanted.graph)
    else:
        own = of.ends if config.top is not None else of.ends[:1]
        nodes = part.graph if config.embeddings is None else of.nodes
        wanted = [predictions.nodes(comm, config.nodes, one[0], nodes, at_once) for one in own]
    with errors_of(run.model.spec), using(named(run.training.numerics, comm)), no_grad():
        model, found = _computed(comm, trained, part)
        if config.top is not None:
            wanted, arrays = _top(part.graph, model.decoder, found, wanted, of, known, config)
        elif config.links is None:
            (wanted,) = wanted
            arrays = [array[wanted.rows] for array in _arrays(config, form, found, trained.decision)]
        elif config.rank:
            arrays = [_ranks(part.graph, model.decoder, found, wanted.graph, of, known)]
            _tell_ranks(comm, arrays[0][:, 1])
        else:
            wanted, arrays = _scored(comm, config, wanted, _arrays(config, form, found, trained.decision))
    predictions.write(comm, config, form, wanted, arrays, of, meta.get("class_names"))
    if trained.decision is not None and comm.rank == 0:
        print(f"threshold {', '.join(f'{value:.4g}' for value in trained.decision.thresholds[:10])}", flush=True)


def _check_type(config, run, part):
    """Raise a ConfigError if --type is no node type of the data."""
    types = part.graph.graph.node_types if isinstance(part.graph, NodeType) else ()
    if config.type is not None and config.type not in types:
        known = f"the node types are {', '.join(types)}" if types else f"--data {run.source.spec} are of one node type"
        raise ConfigError(f"--type {config.type}: {known}")


def _type_of_rows(config, part):
    """Return the node type whose rows --embeddings writes."""
    if config.type is None and len(part.graph.node_types) > 1:
        raise ConfigError(f"--embeddings {config.embeddings}: --type says whose rows, one of "
                          f"{', '.join(part.graph.node_types)}")
    return config.type or part.graph.node_type


def _check_several(config, of):
    """Raise a ConfigError if a request is not supported for several relations."""
    if of.several and config.top is not None and config.out.endswith(".npy"):
        raise ConfigError(f"--out {config.out}: --top of several relations is a table")
    sources = {own[0].node_type for own in of.ends}
    if of.several and config.nodes is not None and len(sources) > 1:
        raise ConfigError(f"--nodes {config.nodes}: the sources of the relations are of several types, "
                          f"{', '.join(sorted(sources))}")


def _by_relation(decoder, of):
    """Return a scoring function for each relation.

    A decoder of several relations also receives the index of the relation.
    """
    if not of.several:
        return [decoder]
    return [one_relation(decoder, number) for number in range(len(of.ends))]


def _ranks(graph, decoder, h, pairs, of, known):
    """Return the result of `ranks` for pairs, each ranked within its relation, (n_pairs, 2). Collective."""
    heads, tails, found = pairs.heads[:, 0], pairs.tails[:, 0], np.empty((len(pairs.heads), 2))
    for at, one in enumerate(_by_relation(decoder, of)):
        rows = pairs.relations == at if of.several else slice(None)
        found[rows] = ranks(graph, one, h, heads[rows], tails[rows], of.ends[at][1], known[at])
    return found


def _top(graph, decoder, h, wanted, of, known, config):
    """Return the likeliest destinations, relation after relation. Collective."""
    n, ids, arrays, table = 0, [], [], not config.out.endswith(".npy") and graph.comm.rank == 0
    for at, (own, one) in enumerate(zip(wanted, _by_relation(decoder, of))):
        if table:
            ids.append(np.stack([np.arange(own.n) if own.ids is None else own.ids, np.full(own.n, at)], 1))
        arrays.append(top(graph, one, h, own.rows, of.ends[at][1], known[at], config.top))
        arrays[-1] = n + own.places, *arrays[-1]
        n += own.n
    places, *arrays = (np.concatenate(each) for each in zip(*arrays))
    return PredictionRequest(places, n, np.concatenate(ids) if table else None), arrays


def _scored(comm, config, pairs, arrays):
    """The pairs and their scores. Where the file has negatives, too, what evaluators say is told. Collective."""
    if pairs.per_link is None:
        return pairs, arrays
    _tell(comm, f"negatives of {config.links}", pairs.metrics(comm, arrays[0]))
    own = pairs.places < pairs.n
    return pairs._replace(places=pairs.places[own]), [arrays[0][own]]


def _tell_ranks(comm, found):
    """Print the results of all ranks on rank 0. Collective."""
    sums = np.array([np.sum(1 / found), np.sum(found <= 1), np.sum(found <= 10), len(found)])
    *sums, n = comm.allreduce(sums).tolist()
    _tell(comm, "all nodes", {name: one / max(n, 1) for name, one in zip(("mrr", "hits@1", "hits@10"), sums)})


def _tell(comm, among, numbers):
    if comm.rank == 0 and numbers:
        told = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
        show(f"rank among {among}: {told}")


def _check_request(config, options):
    """Raise a ConfigError if the run's task has no predictions of the kind that the command line wants."""
    task = options.training.task
    labelled = options.links.edge_labels is not None
    for name in ("links", "top", "rank"):
        if getattr(config, name) and task != "link" and not (labelled and name == "links"):
            of = f"{task}, of edges' labels" if labelled else task
            value = "" if name == "rank" else f" {getattr(config, name)}"
            raise ConfigError(f"--{name}{value}: the task of {config.checkpoint} is {of}, but must be link")
    if (labelled or task == "link") and [config.links, config.top, config.embeddings].count(None) != 2:
        wanted, of = ("--links", "its run's --edge-labels") if labelled else ("--links, --top", "link")
        raise ConfigError(f"{wanted} or --embeddings: the task of {config.checkpoint} is {of}: give one of these")
    if config.links is not None and config.nodes is not None:
        raise ConfigError(f"--nodes {config.nodes}: not beside --links, which has the pairs")
    if config.at is not None and not options.minibatch.temporal:
        raise ConfigError(f"--at {config.at} means nothing for {config.checkpoint}, a run without --temporal")


def _check_links(config, run, meta, told, several):
    """Raise a CheckpointError if the links do not fit the training.

    The splits must be those of training, because test edges would pass messages otherwise. The data must have the
    relations of the decoder.
    """
    there, here = meta["data"].get("relations"), ", ".join(several) if several else None
    if there != here:
        raise CheckpointError(f"checkpoint {config.checkpoint}: its decoder is of the relations {there}, but --data "
                              f"{run.source.spec} have {here}")
    if meta["data"].get("links") != told:
        raise CheckpointError(f"checkpoint {config.checkpoint}: the splits in its files of --link-val, --link-test or "
                              "--link-split have changed")


def _computed(comm, trained, part):
    """Return the model, and this rank's rows, (n_local, ...): outputs, a layer's rows, or the encoder's rows for links.

    Collective.
    """
    config, run, n_out = trained.config, trained.run, trained.meta["data"]["classes"]
    model = restore_model(comm, trained, part)
    x = input_rows(comm, trained, part, model)
    of_pairs = _of_pairs(run, part)
    runs = model.encoder if of_pairs and (config.links is None or config.rank) else model
    graph = part.graph if config.embeddings is None else _Layers(part.graph, config.embeddings)
    if run.batches and run.batches.temporal:
        temporal = temporal_of(run.batches.temporal, part)
        if config.at is not None:
            at = together(comm, lambda: read_time(config.at, part.time_kind, f"--at {config.at}"))
            temporal = replace(temporal, seeds=np.full(part.graph.n_dst, at))
        return model, outputs_in_time(trained, part, model, x, temporal, run.batches.eval_fanouts or run.batches.fanouts)
    with kernels.Buffers():
        constant = partial(Tensor, constant=True)
        x = {name: constant(own) for name, own in x.items()} if isinstance(x, dict) else constant(x)
        output = runs(graph, x)
        # scores are as many as pairs, and rows as wide as --link-width
        check_output(output, type(runs).__name__, part.graph.n_dst, 0 if of_pairs else n_out)
        if config.embeddings is None:
            return model, as_array(output).copy()
        return model, as_array(graph.rows(output, run.model.spec, config.type)).copy()


def _is_of_nodes(config):
    """Return True if outputs for nodes are written, which can be computed each at its own time."""
    return not (config.links or config.top or config.embeddings)


def _of_pairs(run, part):
    """Return True if the run predicts pairs of nodes: links, or labels of edges."""
    return issubclass(task_of(run, part), PairTask)


class _Layers:
    """A graph wrapper that keeps the input of one layer, which is the output of the layer before."""

    def __init__(self, graph, layer):
        self._graph, self._layer, self._entered, self._kept = graph, layer, 0, None

    def __getattr__(self, name):
        return getattr(self._graph, name)

    def layers(self, n):
        return [_Layer(graph, self._enter) for graph in self._graph.layers(n)]

    def _enter(self, h):
        if self._entered == self._layer:
            self._kept = h
        self._entered += 1

    def rows(self, output, model, node_type=None):
        """Return the layer's rows, for relational data the rows of one type; the last layer's rows are the output."""
        if self._layer > self._entered:
            has = f"has {self._entered} layers" if self._entered else "does not use graph.layers, so no layer is known"
            raise ConfigError(f"--embeddings {self._layer}: the model {model} {has}")
        if not isinstance(self._graph, NodeType):
            return output if self._kept is None else self._kept
        found = self._by_type(output) if self._kept is None else self._kept
        node_type = node_type or self._graph.node_type
        if node_type not in found:
            raise ConfigError(f"--type {node_type}: layer {self._layer} of the model {model} makes rows of "
                              f"{', '.join(found)} alone, on which its output depends")
        return found[node_type]

    def _by_type(self, output):
        counts = [len(self._graph.graph.node_ids[name]) for name in self._graph.node_types]
        ends = np.cumsum([0, *counts]).tolist()
        return {name: output[low:high] for name, low, high in zip(self._graph.node_types, ends, ends[1:])}


class _Layer:
    """The graph that one layer computes on, which tells of the rows that enter the layer."""

    def __init__(self, graph, on_enter):
        self._graph, self._on_enter = graph, on_enter

    def __getattr__(self, name):
        return getattr(self._graph, name)

    def enter(self, h):
        self._on_enter(h)
        return self._graph.enter(h)


def _arrays(config, form, found, decision=None):
    """Return the array for each file of `predictions.paths`."""
    if form == "link" and config.links is not None:
        return [found[:, 0]]
    if config.embeddings is not None or form == "regress":
        return [found]
    probabilities = (ops.softmax(Tensor(found), 1) if form == "classify" else ops.sigmoid(Tensor(found))).data
    if decision is not None:
        return [decision.of(found, form == "multilabel"), probabilities]
    labels = found.argmax(1) if form == "classify" else (found > 0).astype(np.uint8)
    return [labels, probabilities]


def main(argv=None):
    """Predict as the command line says; return the exit status."""
    return main_on_ranks(argv, parse, lambda: predict)


if __name__ == "__main__":
    sys.exit(main())
