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
from sarlite.cli.trained_run import (
    OF_THE_RUN,
    TAKEN,
    CheckpointOptions,
    input_rows,
    load_data,
    open_run,
    outputs_in_time,
    restore_model,
)
from sarlite.comm import together
from sarlite.command import refuse_input, show
from sarlite.data import result_table
from sarlite.data.times import read_time
from sarlite.errors import CheckpointError, ConfigError, import_optional
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
            import_optional("pyarrow", f"--out {self.out}")
        if self.embeddings is not None and self.embeddings < 1:
            raise ConfigError(f"--embeddings {self.embeddings}: layers count from 1")
        if self.type is not None and self.embeddings is None:
            raise ConfigError(f"--type {self.type} has no effect without --embeddings")
        if self.top is not None and self.top < 1:
            raise ConfigError(f"--top {self.top}: at least 1 destination")
        if self.rank and self.links is None:
            raise ConfigError("--rank has no effect without --links")
        if self.known and self.top is None and not self.rank:
            raise ConfigError("--known has no effect without --top or --rank")


def parse(argv: Sequence[str] | None) -> tuple[RunOptions, PredictOptions]:
    """Return (training options, the command's own options), both from the command line `argv`; None stands for the arguments of the
    process. The training options override the checkpoint's.

    Raises
    ------
    ConfigError
        A flag is unknown, a value is invalid, or a needed flag is missing.
    """
    options, values = config.parse_further(
        argv, PredictOptions, ("checkpoint", "out"), TAKEN, OF_THE_RUN, prog="python -m sarlite.predict",
        usage="%(prog)s --checkpoint RUN --out FILE.csv [options]", description=__doc__)
    import_optional("safetensors", "a checkpoint")
    inputs = {"--checkpoint": options.checkpoint, "--nodes": options.nodes, "--links": options.links}
    for path in (options.out, *predictions.paths(options, "classify")):
        refuse_input("--out", path, inputs)
    return config.resolve(values), options.with_overrides(values)


@naming_flags
def predict(comm, training_options, config, tick=lambda: None, interrupts=None, at_once=1 << 20):
    """Compute the predictions of a trained model for a data set, and write them to the files in `config`. `training_options` are the
    training options of the command line; `tick()` is called whenever this rank makes progress. Rank 0 sends `at_once` ids in one message;
    `interrupts` is ignored. Collective.

    Parameters
    ----------
    comm : Communicator
    training_options : RunOptions
        Training options of the command line, for options that the checkpoint does not have.
    config : PredictOptions
    tick : callable
        tick() is called whenever this rank makes progress.
    interrupts : Interrupts, optional
        Not used.
    at_once : int
        Number of ids of --nodes or --links that rank 0 sends in one message.

    Raises
    ------
    SarliteError
        On every rank together: the checkpoint cannot be read, or has another model, other features or other classes than
        the data; the data have edge values that training did not use, and no option says to use them; the data lack
        values that training used; a requested node does not exist; or a file cannot be written. Old output files are
        unchanged then.

    Notes
    -----
    Files of the format .npy, all in the order of --nodes or --links, or by node id:

    - A run on nodes or graphs writes --out: probabilities of classes or labels, or numbers, shape (n_rows, n_outputs),
      in the model's dtype. Classes and labels have a second file NAME.labels.npy: the predicted class, shape (n_rows,),
      int64; or 0 and 1 for each label, shape (n_rows, n_labels), uint8.
    - --embeddings writes the rows of a layer, shape (n_rows, width).
    - A run with --task link writes the score of each pair of --links, shape (n_pairs,); a larger score means a likelier
      link. Messages pass along the same edges as in the run's evaluation. With --rank the shape is (n_pairs, 2),
      float64: the score, and the rank of the destination among all nodes, where ties count half.
    - --top writes scores, and in NAME.labels.npy the ids of the destinations, shape (n_rows, K), int64, -1 beyond the
      last destination.
    - A run with --edge-labels writes a row for each pair of --links.

    A table, .csv, .jsonl or .parquet, has the same values as columns after the ids, and class names where the data have
    names. --top has a row for each pair of nodes in a table.

    Memory: a forward pass of training, a copy of this rank's rows, and with --nodes 8 bytes for each id on rank 0.
    """
    trained = open_run(comm, config, partial(_check_request, config))
    task, form, run, meta = trained.task, trained.form, trained.run, trained.meta
    together(comm, lambda: predictions.check_paths(config, form) if comm.rank == 0 else None)
    tick()
    part = load_data(comm, trained, training_options.machine.threads, Path(config.out).absolute().parent,
                     {"embeddings": config.embeddings, "in_time": _is_of_nodes(config)}, tick)
    together(comm, lambda: _check_type(config, run, part))
    linked, excluded = Linked.of_nodes(part.graph, part.target, part.names), []
    if _of_pairs(run, part):
        linked = together(comm, lambda: run.links.linked(part.graph, part.names))
        part = part._replace(graph=linked.nodes)
        together(comm, lambda: _check_several(config, linked))
    if task == "link":
        splits = run.links.splits(linked, time_split_of(run, part))
        digest = link_splits.digest(comm, *splits)
        together(comm, lambda: _check_links(config, run, meta, digest, linked.several))
        filtered = (config.top is not None or config.rank) and not config.known
        excluded = known_links(linked, *splits, run.training.seed) if filtered else [np.empty(0, np.int64)] * len(linked.ends)
        part = part._replace(graph=without_links(linked, *splits, run.training.seed))
    if config.embeddings is not None and isinstance(part.graph, NodeType):
        node_type = together(comm, lambda: _type_of_rows(config, part))
        linked = Linked.of_nodes(part.graph.graph.of(node_type), node_type, part.names)
    if config.links is not None:
        with_negatives = task == "link" and not config.rank
        wanted = predictions.pairs(comm, config.links, linked, part.graph, at_once, with_negatives)
        part = part if config.rank else part._replace(graph=wanted.graph)
    else:
        ends = linked.ends if config.top is not None else linked.ends[:1]
        nodes = part.graph if config.embeddings is None else linked.nodes
        wanted = [predictions.nodes(comm, config.nodes, source, nodes, at_once) for source, _ in ends]
    with errors_of(run.model.spec), using(named(run.training.numerics, comm)), no_grad():
        model, output = _computed(comm, trained, part)
        if config.top is not None:
            wanted, arrays = _top(part.graph, model.decoder, output, wanted, linked, excluded, config)
        elif config.links is None:
            (wanted,) = wanted
            arrays = [array[wanted.rows] for array in _arrays(config, form, output, trained.decision)]
        elif config.rank:
            arrays = [_scores_and_positions(part.graph, model.decoder, output, wanted.graph, linked, excluded)]
            _show_rank_metrics(comm, arrays[0][:, 1])
        else:
            wanted, arrays = _scored(comm, config, wanted, _arrays(config, form, output, trained.decision))
    predictions.write(comm, config, form, wanted, arrays, linked, meta.get("class_names"))
    if trained.decision is not None and comm.rank == 0:
        print(f"threshold {', '.join(f'{value:.4g}' for value in trained.decision.thresholds[:10])}", flush=True)


def _check_type(config, run, part):
    """Raise a ConfigError if --type is not a node type of the data. `part` is this rank's part of the data."""
    types = part.graph.graph.node_types if isinstance(part.graph, NodeType) else ()
    if config.type is not None and config.type not in types:
        available = f"the node types are {', '.join(types)}" if types else f"--data {run.source.spec} are of one node type"
        raise ConfigError(f"--type {config.type}: {available}")


def _type_of_rows(config, part):
    """Return the node type whose rows --embeddings writes: --type, or the type with labels. Raise a ConfigError if the data have
    several types and --type is missing.
    """
    if config.type is None and len(part.graph.node_types) > 1:
        raise ConfigError(f"--embeddings {config.embeddings}: name the node type with --type, one of "
                          f"{', '.join(part.graph.node_types)}")
    return config.type or part.graph.node_type


def _check_several(config, linked):
    """Raise a ConfigError if `linked` has several relations to predict, and --top or --nodes cannot be used with them."""
    if linked.several and config.top is not None and config.out.endswith(".npy"):
        raise ConfigError(f"--out {config.out}: --top of several relations needs a table, such as FILE.csv")
    sources = {source.node_type for source, _ in linked.ends}
    if linked.several and config.nodes is not None and len(sources) > 1:
        raise ConfigError(f"--nodes {config.nodes}: the sources of the relations are of several types, "
                          f"{', '.join(sorted(sources))}")


def _score_functions(decoder, linked):
    """Return a list of functions (head rows, tail rows) -> scores of the pairs, one for each relation to predict in `linked`. Each calls
    `decoder` with the parameters of its relation.
    """
    if not linked.several:
        return [decoder]
    return [one_relation(decoder, number) for number in range(len(linked.ends))]


def _scores_and_positions(graph, decoder, node_rows, pairs, linked, excluded):
    """Score the node pairs in `pairs` by `decoder`, from the encoder's output rows `node_rows` of `graph`. Return for each pair (score,
    rank of its destination among all destinations of its source, from 1), (n_pairs, 2). `linked` has the relations of the pairs. Pairs with
    keys in `excluded`, by relation, do not count. Collective.
    """
    heads, tails, result = pairs.heads[:, 0], pairs.tails[:, 0], np.empty((len(pairs.heads), 2))
    for index, score in enumerate(_score_functions(decoder, linked)):
        rows = pairs.relations == index if linked.several else slice(None)
        result[rows] = ranks(graph, score, node_rows, heads[rows], tails[rows], linked.ends[index][1], excluded[index])
    return result


def _top(graph, decoder, node_rows, sources_by_relation, linked, excluded, config):
    """Find the `config.top` likeliest destinations of each source; `sources_by_relation` has a `PredictionRequest` (this rank's sources)
    for each relation in `linked`. `decoder` scores pairs of the encoder's output rows `node_rows`; pairs with keys in `excluded`, by
    relation, are left out. Return (`PredictionRequest` of all sources, [ids of their destinations, scores]). Collective.
    """
    n, ids, arrays, table = 0, [], [], not config.out.endswith(".npy") and graph.comm.rank == 0
    for index, (sources, score) in enumerate(zip(sources_by_relation, _score_functions(decoder, linked))):
        if table:
            ids.append(np.stack([np.arange(sources.n) if sources.ids is None else sources.ids,
                                 np.full(sources.n, index)], 1))
        arrays.append(top(graph, score, node_rows, sources.rows, linked.ends[index][1], excluded[index], config.top))
        arrays[-1] = n + sources.places, *arrays[-1]
        n += sources.n
    places, *arrays = (np.concatenate(each) for each in zip(*arrays))
    return PredictionRequest(places, n, np.concatenate(ids) if table else None), arrays


def _scored(comm, config, pairs, scores):
    """Print how high each listed pair ranks among its negatives, if the file --links lists negatives, too. Return `pairs`, a
    `PredictionRequest`, and `scores`, [array], without the negatives. Collective.
    """
    if pairs.per_link is None:
        return pairs, scores
    _show_metrics(comm, f"negatives of {config.links}", pairs.metrics(comm, scores[0]))
    is_pair = pairs.places < pairs.n
    return pairs._replace(places=pairs.places[is_pair]), [scores[0][is_pair]]


def _show_rank_metrics(comm, positions):
    """Print MRR and hits@k on rank 0. `positions` has, for each of this rank's pairs, the rank of its destination among all nodes,
    shape (n_pairs,). Collective.
    """
    sums = np.array([np.sum(1 / positions), np.sum(positions <= 1), np.sum(positions <= 10), len(positions)])
    *sums, n = comm.allreduce(sums).tolist()
    _show_metrics(comm, "all nodes", {name: total / max(n, 1) for name, total in zip(("mrr", "hits@1", "hits@10"), sums)})


def _show_metrics(comm, among, metrics):
    if comm.rank == 0 and metrics:
        values = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        show(f"rank among {among}: {values}")


def _check_request(config, options):
    """Raise a ConfigError if the command line requests predictions that the run's task does not have."""
    task = options.training.task
    labelled = options.links.edge_labels is not None
    for name in ("links", "top", "rank"):
        if getattr(config, name) and task != "link" and not (labelled and name == "links"):
            actual = f"{task}, of edges' labels" if labelled else task
            value = "" if name == "rank" else f" {getattr(config, name)}"
            raise ConfigError(f"--{name}{value}: the task of {config.checkpoint} is {actual}, but must be link")
    if (labelled or task == "link") and [config.links, config.top, config.embeddings].count(None) != 2:
        choices, actual = ("--links", "its run's --edge-labels") if labelled else ("--links, --top", "link")
        raise ConfigError(f"{choices} or --embeddings: give one of these flags, because the task of {config.checkpoint} is "
                          f"{actual}")
    if config.links is not None and config.nodes is not None:
        raise ConfigError(f"--nodes {config.nodes}: cannot be combined with --links, which lists the pairs")
    if config.at is not None and not options.minibatch.temporal:
        raise ConfigError(f"--at {config.at} has no effect on {config.checkpoint}, a run without --temporal")


def _check_links(config, run, checkpoint_metadata, digest, several):
    """Raise a CheckpointError if the relations of the links (`several`, None for one) or the hash `digest` of their splits differ
    from training's, in `checkpoint_metadata`. With other splits, messages would pass along test edges.
    """
    trained, available = checkpoint_metadata["data"].get("relations"), ", ".join(several) if several else None
    if trained != available:
        raise CheckpointError(f"checkpoint {config.checkpoint}: its decoder is for the relations {trained}, but --data "
                              f"{run.source.spec} have {available}")
    if checkpoint_metadata["data"].get("links") != digest:
        raise CheckpointError(f"checkpoint {config.checkpoint}: the splits in its files of --link-val, --link-test or "
                              "--link-split have changed")


def _computed(comm, trained, part):
    """Run the trained model on the data `part`; return (model, rows of this rank's nodes, shape (n_local, ...)). The rows are the
    model's outputs, with --embeddings a hidden layer's outputs, and with --top and --rank the encoder's. Collective.
    """
    config, run, n_out = trained.config, trained.run, trained.meta["data"]["classes"]
    model = restore_model(comm, trained, part)
    x = input_rows(comm, trained, part, model)
    of_pairs = _of_pairs(run, part)
    module = model.encoder if of_pairs and (config.links is None or config.rank) else model
    graph = part.graph if config.embeddings is None else _Layers(part.graph, config.embeddings)
    if run.batches and run.batches.temporal:
        temporal = temporal_of(run.batches, part)
        if config.at is not None:
            at = together(comm, lambda: read_time(config.at, part.time_kind, f"--at {config.at}"))
            temporal = replace(temporal, seeds=np.full(part.graph.n_dst, at))
        return model, outputs_in_time(trained, part, model, x, temporal, run.batches.eval_fanouts or run.batches.fanouts)
    with kernels.Buffers():
        constant = partial(Tensor, constant=True)
        x = {name: constant(rows) for name, rows in x.items()} if isinstance(x, dict) else constant(x)
        output = module(graph, x)
        # n_classes 0: the width is not checked for scores of pairs, nor for the encoder's rows
        check_output(output, type(module).__name__, part.graph.n_dst, 0 if of_pairs else n_out)
        if config.embeddings is None:
            return model, as_array(output).copy()
        return model, as_array(graph.rows(output, run.model.spec, config.type)).copy()


def _is_of_nodes(config):
    """Return True if the command predicts nodes. Each row can then be computed from edges up to its own time."""
    return not (config.links or config.top or config.embeddings)


def _of_pairs(run, part):
    """Return True if the run predicts pairs of nodes: links, or labels of edges."""
    return issubclass(task_of(run, part), PairTask)


class _Layers:
    """Wrapper of a graph that records the output of a hidden layer while the model runs on the graph.

    Parameters
    ----------
    graph : Graph or NodeType
    layer : int
        Index of the layer whose input is stored, from 0 on.
    """

    def __init__(self, graph, layer):
        self._graph, self._layer, self._entered, self._stored = graph, layer, 0, None

    def __getattr__(self, name):
        return getattr(self._graph, name)

    def layers(self, n):
        return [_Layer(graph, self._enter) for graph in self._graph.layers(n)]

    def _enter(self, h):
        if self._entered == self._layer:
            self._stored = h
        self._entered += 1

    def rows(self, output, model, node_type=None):
        """Return the output rows of the recorded layer for the nodes of `node_type`, by default the type with labels. For the last
        layer they are `output`, the output of the model named `model`.

        Parameters
        ----------
        output : Tensor
            Output of the model.
        model : str
            Name of the model, for error messages.
        node_type : str, optional
            Node type of the rows for relational data; by default the type that has labels.
        """
        if self._layer > self._entered:
            has = f"has {self._entered} layers" if self._entered else "does not use graph.layers, which counts layers"
            raise ConfigError(f"--embeddings {self._layer}: the model {model} {has}")
        if not isinstance(self._graph, NodeType):
            return output if self._stored is None else self._stored
        rows = self._by_type(output) if self._stored is None else self._stored
        node_type = node_type or self._graph.node_type
        if node_type not in rows:
            raise ConfigError(f"--type {node_type}: layer {self._layer} of the model {model} computes only the rows that "
                              f"its output depends on, of {', '.join(rows)}")
        return rows[node_type]

    def _by_type(self, output):
        counts = [len(self._graph.graph.node_ids[name]) for name in self._graph.node_types]
        ends = np.cumsum([0, *counts]).tolist()
        return {name: output[low:high] for name, low, high in zip(self._graph.node_types, ends, ends[1:])}


class _Layer:
    """Wrapper of the graph that one layer uses; it passes the layer's input rows to a callback."""

    def __init__(self, graph, on_enter):
        self._graph, self._on_enter = graph, on_enter

    def __getattr__(self, name):
        return getattr(self._graph, name)

    def enter(self, h):
        self._on_enter(h)
        return self._graph.enter(h)


def _arrays(config, form, output, decision=None):
    """Return the arrays to write for the model's `output` with targets of `form`: [`output`] for links, numbers and hidden rows,
    else [labels, probabilities]. `decision` has thresholds for the labels; None takes the likeliest.
    """
    if form == "link" and config.links is not None:
        return [output[:, 0]]
    if config.embeddings is not None or form == "regress":
        return [output]
    probabilities = (ops.softmax(Tensor(output), 1) if form == "classify" else ops.sigmoid(Tensor(output))).data
    if decision is not None:
        return [decision.of(output, form == "multilabel"), probabilities]
    labels = output.argmax(1) if form == "classify" else (output > 0).astype(np.uint8)
    return [labels, probabilities]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `python -m sarlite.predict` and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Command line arguments; by default the arguments of the process.
    """
    return main_on_ranks(argv, parse, lambda: predict)


if __name__ == "__main__":
    sys.exit(main())
