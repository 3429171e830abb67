"""Write a trained model's outputs for the nodes, links or graphs of a data set, or the rows of one of its layers."""

import argparse
import contextlib
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sarlite import kernels, nn
from sarlite.comm import together
from sarlite.comm.launch import default_prefetch, default_threads
from sarlite.command import Parser, parse_own
from sarlite.data import node_rows, result_table, scratch, textfile
from sarlite.data.dataset import SPLITS
from sarlite.errors import CheckpointError, ConfigError, DataError, needs
from sarlite.files import try_whole
from sarlite.sar.graph.graph_set import GraphSet
from sarlite.tape import Tensor, no_grad, ops
from sarlite.tape.engine import as_array
from sarlite.tape.exact import named
from sarlite.tape.numerics import using
from sarlite.train import __main__ as command
from sarlite.train import checkpoint, link_scores, link_splits, propagated, resume
from sarlite.train import config as training
from sarlite.train.combinations import Run, refuse
from sarlite.train.config import naming_flags
from sarlite.train.edge_values import ARRAYS
from sarlite.train.identity import identity
from sarlite.train.label_inputs import LabelInputs, ShownLabels
from sarlite.train.link_edges import Ends
from sarlite.train.load import kind, load, told_widths, widths
from sarlite.train.model import errors_of, make_model
from sarlite.train.options import MODEL_OPTIONS
from sarlite.train.recommend import NOBODY, ranks, top
from sarlite.train.run import make_graph_predictor, make_predictor
from sarlite.train.settings import settings
from sarlite.train.trainer_arguments import check_output

OWN: dict[str, tuple[Any, Any, str]] = {
    "checkpoint": (None, str, "checkpoint of a run of sarlite.train, with the model and all options"),
    "nodes": (None, str, "nodes to predict, in this order: an id of the data on each line, or .npy [all nodes]"),
    "links": (None, str, "for a run with --task link or --edge-labels: pairs of source and destination to predict, in "
                         "this order; CSV, .npy or .parquet"),
    "top": (None, int, "for a run with --task link: the K likeliest destinations of each node, without links of the "
                       "data"),
    "rank": (None, bool, "beside each score of --links, write the rank of the destination among all nodes that the "
                         "data do not link to the source [no]"),
    "known": (None, bool, "let links of the data be among --top, and count with --rank [no]"),
    "embeddings": (None, int, "write the rows of this layer, from 1 on; the last layer's rows are no probabilities "
                              "yet"),
    "out": (None, str, "FILE.csv or .parquet: id, class, probabilities; or FILE.npy: probabilities, with the classes "
                       "in FILE.labels.npy; an old file is replaced"),
    "weights": ("best", ("best", "last"), "parameters of the best epoch, or of the last epoch"),
}
_METAVARS = {"checkpoint": "FILE", "nodes": "FILE", "links": "FILE", "top": "K", "embeddings": "LAYER", "out": "FILE"}
TAKEN = ("data", "model", "edge-weights", "edge-features", "mode", "columns", "prefetch", "partition", "order",
         "balance", "threads", "ranks", "stall-timeout", "propagated", "progress", "verify")  # fmt: skip
"""Options of `sarlite.train` that this command has too. The checkpoint has the options of data and model."""
_KEPT = (*resume.LASTING, *MODEL_OPTIONS, "data")


def parse(argv=None):
    """Return the options: `OWN`, the options of `sarlite.train`, and as `given` the options of the command line.

    Raises
    ------
    ConfigError
        An unknown flag, a bad value, or a file that is not named.
    """
    parser = Parser(prog="python -m sarlite.predict", usage="%(prog)s --checkpoint FILE --out FILE.csv [options]",
                    argument_default=argparse.SUPPRESS, description=__doc__)
    own, given = parse_own(argv, parser, OWN, _METAVARS, ("checkpoint", "out"),
                           lambda parser: training.add_taken(parser, TAKEN))
    if not own["out"].endswith((".npy", *result_table.SUFFIXES)):
        raise ConfigError(f"--out {own['out']}: must end in .npy, {' or '.join(result_table.SUFFIXES)}, which names "
                          "its format")
    if own["out"].endswith(".parquet"):
        needs("pyarrow", f"--out {own['out']}")
    if own["embeddings"] is not None and own["embeddings"] < 1:
        raise ConfigError(f"--embeddings {own['embeddings']}: layers count from 1")
    if own["top"] is not None and own["top"] < 1:
        raise ConfigError(f"--top {own['top']}: at least 1 destination")
    if own["rank"] and own["links"] is None:
        raise ConfigError("--rank means nothing without --links")
    if own["known"] and own["top"] is None and not own["rank"]:
        raise ConfigError("--known means nothing without --top or --rank")
    needs("safetensors", "a checkpoint")
    resolved = vars(training.resolve(given))
    given.pop("threads", None)  # which may differ between ranks
    return argparse.Namespace(**resolved, **own, given=given)


@naming_flags
def predict(comm, config, tick=lambda: None, interrupts=None, at_once=1 << 20):
    """Run a checkpoint's model on a data set and write each rank's rows into their places of one file. Collective.

    Of a run with --task link --out is the score of each pair of --links, (pairs,): what is larger is likelier. Messages
    pass along the edges that they passed along in the run's evaluation. With --rank --out is (pairs, 2) float64:
    scores, and ranks of the destinations among all nodes, where ties count half. Of a run with --edge-labels a row is
    of a pair.

    Files: --out, (rows, n_outputs) in the model's dtype: probabilities of classes or labels, or numbers. Before
    probabilities comes NAME.labels.npy beside it: the most likely class, (rows,) int64, or 0 and 1 of several labels,
    (rows, n_labels) uint8. With --embeddings a layer's rows alone. A .csv or .parquet file has all of that as columns,
    behind the nodes' ids; classes are told by name where they have names. Ids of --nodes are sent `at_once` at a time.
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
    prefixes = ("best.", "model.") if config.weights == "best" else ("model.",)
    tensors, meta = checkpoint.read(comm, config.checkpoint, prefixes)
    options = together(comm, lambda: _options(config, meta))
    run = together(comm, lambda: settings(options))
    together(comm, lambda: _try(_paths(config, options.task)) if comm.rank == 0 else None)
    tick()
    known = Run.of({**vars(options), "embeddings": config.embeddings}, run.model.cls, kind(comm, run.source.spec))
    together(comm, lambda: refuse(known))
    graph = run.graph._replace(backward="push")  # there is no backward, so no plan of the reversed edges is made
    if options.prefetch is None:
        graph = graph._replace(prefetch=default_prefetch(comm, options.threads or default_threads(comm)))
    source = run.source._replace(allow_empty=SPLITS, edge_values=_as_trained(run.source.edge_values, meta))
    part = load(comm, source, graph, Path(config.out).absolute().parent, tick)
    part.graph.profile.on_progress = tick
    n_train = sum(comm.allgather(int(np.count_nonzero(part.rows.train))))
    together(comm, lambda: _check_data(config, options, meta, part, n_train))
    ends, several = [(Ends(0, part.graph.n_nodes, part.target, part.names.get(part.target)),)], None
    if part.task == "link":
        linked = together(comm, lambda: run.links.linked(part.graph, part.names))
        ends, several, part = linked.ends, linked.several, part._replace(graph=linked.nodes)
        together(comm, lambda: _check_several(config, several, ends))
    if options.task == "link":
        splits = run.links.splits(linked)
        told = link_splits.digest(comm, *splits)
        together(comm, lambda: _check_links(config, meta, told, several))
        filtered = (config.top is not None or config.rank) and not config.known
        known = [np.empty(0, np.int64)] * len(ends)
        if filtered:
            known = run.links.known(linked, splits, run.training.seed)
        part = part._replace(graph=run.links.without(linked, splits, run.training.seed))
    if config.links is not None:
        with_negatives = options.task == "link" and not config.rank
        asked = link_scores.asked(comm, config.links, ends, several, part.graph, at_once, with_negatives)
        places, pairs, n_rows, nodes, _ = asked
        part, rows = part if config.rank else part._replace(graph=pairs), slice(None)
    else:
        wanted = [_wanted(comm, config.nodes, own[0], part.graph, at_once)
                  for own in (ends[:1] if config.top is None else ends)]
        places, rows, n_rows, nodes = wanted[0]
    with errors_of(options.model), using(named(run.training.numerics, comm)):
        model, found = _computed(comm, config, run, part, tensors, meta)
        if config.rank:
            with no_grad():
                arrays = [_ranks(part.graph, model.decoder, found, pairs, ends, known)]
            _tell_ranks(comm, arrays[0][:, 1])
        elif config.top is None:
            arrays = [array[rows] for array in _arrays(config, options.task, found)]
            if config.links is not None and asked.per_link is not None:
                _tell(comm, f"negatives of {config.links}", asked.judged(arrays[0]))
                own = places < n_rows
                arrays, places = [arrays[0][own]], places[own]
        else:
            with no_grad():
                if several:
                    places, n_rows, nodes, arrays = _top(part.graph, model.decoder, found, wanted, ends, known,
                                                         config.top)
                else:
                    arrays = top(part.graph, model.decoder, found, np.arange(len(found))[rows], ends[0][1], known[0],
                                 config.top)
    if not config.out.endswith(".npy"):
        _write_table(comm, config, options.task, arrays, places, n_rows, ends, several, nodes, meta.get("class_names"))
        return
    for path, array in zip(_paths(config, options.task), arrays):
        node_rows.write(comm, path, places, array, n_rows)
        if comm.rank == 0:
            print(f"{path}: {n_rows:,} rows of {' x '.join(map(str, array.shape[1:])) or 1}, {array.dtype}", flush=True)


def _check_several(config, several, ends):
    """Raise a ConfigError where something is asked of several relations that is not done yet."""
    if several and config.top is not None and config.out.endswith(".npy"):
        raise ConfigError(f"--out {config.out}: --top of several relations is a table")
    sources = {own[0].node_type for own in ends}
    if several and config.nodes is not None and len(sources) > 1:
        raise ConfigError(f"--nodes {config.nodes}: the sources of the relations are of several types, "
                          f"{', '.join(sorted(sources))}")


def _of_relation(decoder, number):
    """The decoder of one of several relations, which ranks and the likeliest destinations are asked of."""
    return lambda head, tail: decoder(head, tail, np.full(len(head), number))


def _ranks(graph, decoder, h, pairs, ends, known):
    """What `ranks` returns of pairs, within each one's relation. Collective."""
    heads, tails = pairs.heads[:, 0], pairs.tails[:, 0]
    if pairs.relations is None:
        return ranks(graph, decoder, h, heads, tails, ends[0][1], known[0])
    found = np.empty((len(heads), 2))
    for at, own in enumerate(ends):
        of = pairs.relations == at
        found[of] = ranks(graph, _of_relation(decoder, at), h, heads[of], tails[of], own[1], known[at])
    return found


def _top(graph, decoder, h, wanted, ends, known, k):
    """Relation after relation the likeliest destinations: places in the files and their number of rows; on rank 0
    sources and numbers of relations; and arrays. Collective."""
    n, places, nodes, arrays = 0, [], [], []
    for at, ((where, rows, n_rows, asked), own) in enumerate(zip(wanted, ends)):
        if graph.comm.rank == 0:
            nodes.append(np.stack([np.arange(n_rows) if asked is None else asked, np.full(n_rows, at)], 1))
        arrays.append(top(graph, _of_relation(decoder, at), h, np.arange(len(h))[rows], own[1], known[at], k))
        places.append(n + where)
        n += n_rows
    arrays = [np.concatenate(own) for own in zip(*arrays)]
    return np.concatenate(places), n, np.concatenate(nodes) if nodes else None, arrays


def _write_table(comm, config, task, arrays, places, n_rows, ends, several, nodes, class_names):
    """Write arrays as .npy files in a private folder; rank 0 makes the table of these files. Collective."""
    with contextlib.ExitStack() as held:
        made = together(comm, lambda: held.enter_context(scratch.beside(config.out)) if comm.rank == 0 else None)
        folder = comm.bcast(None if made is None else str(made))
        files = [f"{folder}/{at}.npy" for at in range(len(arrays))]
        for file, array in zip(files, arrays):
            node_rows.write(comm, file, places, array, n_rows)

        def ids(first, last):
            numbers = np.arange(first, last) if nodes is None else nodes[first:last]
            if numbers.ndim == 1:
                return [_named(numbers, ends[0][0])]
            if not several:
                return [_named(column, end) for column, end in zip(numbers.T, ends[0])]
            found = np.empty((len(numbers), 3), object)
            for at, own in enumerate(ends):
                of = numbers[:, 2] == at
                found[of] = np.array([_named(numbers[of, 0], own[0]), [several[at]] * of.sum(),
                                      _named(numbers[of, 1], own[1])], object).T
            return found.T.tolist()

        headings = ("id",) if config.links is None and config.top is None else \
            ("source", "relation", "destination") if several else ("source", "destination")

        def write():
            nonlocal nodes
            *labels, numbers = (np.load(file, mmap_mode="r") for file in files)
            if config.top is not None:
                nodes, labels, numbers = _pairs(nodes, *labels, numbers)
            result_table.write(config.out, ids, labels[0] if labels else None, numbers, task, class_names,
                               config.embeddings is not None, headings)
            print(f"{config.out}: {len(numbers):,} rows", flush=True)

        together(comm, lambda: write() if comm.rank == 0 else None)


def _named(ids, end):
    return end.names.of(ids) if end.names else ids


def _tell_ranks(comm, found):
    """Print on rank 0 what all ranks found. Collective."""
    sums = np.array([np.sum(1 / found), np.sum(found <= 1), np.sum(found <= 10), len(found)])
    *sums, n = comm.allreduce(sums).tolist()
    _tell(comm, "all nodes", {name: one / max(n, 1) for name, one in zip(("mrr", "hits@1", "hits@10"), sums)})


def _tell(comm, among, numbers):
    if comm.rank == 0 and numbers:
        told = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
        print(f"rank among {among}: {told}", flush=True)


def _pairs(nodes, tails, scores):
    """The pairs of nodes and their likeliest destinations, (n, 2), or with a relation's number, (n, 3), no labels, and
    the scores."""
    there = tails != NOBODY
    heads = np.repeat(np.arange(len(tails)) if nodes is None else nodes, np.count_nonzero(there, 1), axis=0)
    if heads.ndim == 1:
        return np.stack([heads, tails[there]], 1), [], scores[there]
    return np.stack([heads[:, 0], tails[there], heads[:, 1]], 1), [], scores[there]


def _options(config, meta):
    """The options of the run that wrote the checkpoint, under those of the command line."""
    resume.check_run(config.checkpoint, meta)
    before = {name: value for name, value in meta["options"].items() if name in _KEPT}
    model = config.given.get("model", before.get("model"))
    if model != before.get("model") and not resume.same_class(before.get("model"), model):
        raise ConfigError(f"--model {model}: the model of {config.checkpoint} is {before.get('model')}")
    options = training.resolve(config.given, before=before, checkpoint=config.checkpoint)
    options.task = meta.get("task", "classify")
    labelled = options.edge_labels is not None
    for name in ("links", "top", "rank"):
        if getattr(config, name) and options.task != "link" and not (labelled and name == "links"):
            of = f"{options.task}, of edges' labels" if labelled else options.task
            value = "" if name == "rank" else f" {getattr(config, name)}"
            raise ConfigError(f"--{name}{value}: the task of {config.checkpoint} is {of}, but must be link")
    if (labelled or options.task == "link") and [config.links, config.top, config.embeddings].count(None) != 2:
        wanted, of = ("--links", "its run's --edge-labels") if labelled else ("--links, --top", "link")
        raise ConfigError(f"{wanted} or --embeddings: the task of {config.checkpoint} is {of}: give one of these")
    if config.links is not None and config.nodes is not None:
        raise ConfigError(f"--nodes {config.nodes}: not beside --links, which has the pairs")
    return options


def _as_trained(values, meta):
    """Which edge values are used: values that training did not use are refused, unless this command's flags say."""
    reason = "training used none" if "used" in meta else \
        "the checkpoint does not say whether training used any, so it is taken that it did not"
    own = {name: None for name in ARRAYS if getattr(values, name) == "there"}
    return values._replace(**own, reason=reason)


def _paths(config, task):
    """The files to write: one, or labels, and at last probabilities."""
    one = config.embeddings is not None or (task in ("regress", "link") and config.top is None)
    if one or not config.out.endswith(".npy"):
        return [config.out]
    return [re.sub(r"\.npy$", ".labels.npy", config.out), config.out]


def _try(paths):
    """Find out early whether files can be written here."""
    for path in reversed(paths):
        try:
            try_whole(path)
        except OSError as error:
            raise ConfigError(f"--out {path}: cannot be written: {error.strerror or error}") from None


def _check_links(config, meta, told, several):
    """Raise a CheckpointError where splits of links are not training's, as test edges would bring messages, or the data
    have other relations, which the decoder's rows are of."""
    there, here = meta["data"].get("relations"), ", ".join(several) if several else None
    if there != here:
        raise CheckpointError(f"checkpoint {config.checkpoint}: its decoder is of the relations {there}, but --data "
                              f"{config.data} have {here}")
    if meta["data"].get("links") != told:
        raise CheckpointError(f"checkpoint {config.checkpoint}: the splits in its files of --link-val, --link-test or "
                              "--link-split have changed")


def _check_data(config, options, meta, part, n_train):
    """Raise where the model does not fit the data; data without labels fit any number of classes."""
    if options.label_inputs and not (n_train and part.n_classes):
        lacking = "no training nodes" if part.n_classes else "no labels"
        raise CheckpointError(f"checkpoint {config.checkpoint}: its model takes the training nodes' labels as inputs, "
                              f"as --label-inputs {options.label_inputs} said, but --data {options.data} have "
                              f"{lacking}")
    trained, features = meta["data"], part.rows.features
    width = told_widths(features) if isinstance(features, dict) else features.shape[1]
    classes = None if part.task == "link" else part.n_classes  # of which links and their labels know nothing
    there, here = (trained.get("features"), trained.get("classes")), (width, classes or trained.get("classes"))
    if there != here:
        told = ", ".join(f"{b} {name}" for name, a, b in zip(("features", "classes"), there, here) if a != b)
        said = ", ".join(f"{a} {name}" for name, a, b in zip(("features", "classes"), there, here) if a != b)
        raise CheckpointError(f"checkpoint {config.checkpoint}: its model is for {said}, but --data {options.data} "
                              f"have {told}")


def _wanted(comm, file, end, graph, at_once):
    """The places of this rank's rows in the files; the rows' own numbers; how many rows the files have; and on rank 0
    the ids of --nodes. Collective.
    """
    ids = np.asarray(graph.dst_ids) - end.first
    if file is None:
        rows = np.flatnonzero((ids >= 0) & (ids < end.n))
        return ids[rows], rows, end.n, None
    nodes = together(comm, lambda: _nodes(file, end.n, end.names) if comm.rank == 0 else None)
    n = comm.bcast(None if nodes is None else len(nodes))
    order, places, rows = np.argsort(ids, kind="stable"), [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    ascending = ids[order]
    for at in range(0, n, at_once):
        size = min(at_once, n - at)
        piece = comm.broadcast(np.empty(size, np.int64) if nodes is None else nodes[at : at + size].copy(), 0)
        spots = np.minimum(np.searchsorted(ascending, piece), max(len(ids) - 1, 0))
        own = np.flatnonzero(ascending[spots] == piece) if len(ids) else places[0]
        places.append(at + own)
        rows.append(order[spots[own]])
    return np.concatenate(places), np.concatenate(rows), n, nodes


def _nodes(file, n_nodes, names):
    """The ids of --nodes, checked, (n,) int64; `names` are the nodes', where they have some."""
    if names is not None and Path(file).suffix != ".npy":
        return names.read(file, "nodes")
    found = textfile.read(file, "nodes", np.int64)
    if found.dtype.kind not in "iu" or (found.size and found.shape[1] != 1):
        raise DataError(f"{file}: nodes: expected one whole number a line, found {found.shape[1]} columns of "
                        f"{found.dtype}")
    found = found.reshape(-1)
    bad = np.flatnonzero((found < 0) | (found >= n_nodes))
    if len(bad):
        raise DataError(f"{file}: nodes: entry {bad[0]} is {found[bad[0]]}, outside 0 <= node < {n_nodes}")
    return found.astype(np.int64)


def _computed(comm, config, run, part, tensors, meta):
    """The model, and this rank's rows, (n_local, ...): outputs, a layer's rows or, for --top and --rank, the encoder's.

    Collective.
    """
    rows, n_out, training = part.rows, meta["data"]["classes"], run.training
    n_in, rng = widths(rows) + n_out if training.label_inputs else widths(rows), nn.Random(training.seed)
    if part.task == "link":
        nodes = getattr(part.graph, "nodes", part.graph)
        model = together(comm, lambda: make_predictor(run, n_in, n_out, rng, nodes))
        n_out = 0  # scores are as many as pairs, and rows as wide as --link-width
    elif isinstance(part.graph, GraphSet):
        model = together(comm, lambda: make_graph_predictor(run, n_in, n_out, rng, part.graph))
    else:
        model = together(comm, lambda: make_model(run.model, n_in, n_out, rng, part.graph))
    try:
        checkpoint.restore_model(comm, model, tensors, meta)
    except CheckpointError as error:
        text = re.sub(r"^(rank \d+: )+", "", str(error))  # the same on every rank: it is told once
        raise CheckpointError(f"checkpoint {config.checkpoint}: {text}") from None
    data = identity(part.graph, rows, n_out) if training.propagated else None
    x = propagated.inputs(comm, model, part, data, training.propagated, run.source.verify)
    if training.label_inputs:
        x = _with_labels(comm, training, part, x, n_out)
    whole = model
    if part.task == "link" and (config.links is None or config.rank):
        model = model.encoder
    graph = part.graph if config.embeddings is None else _Layers(part.graph, config.embeddings)
    with kernels.Buffers(), no_grad():
        constant = partial(Tensor, constant=True)
        x = {name: constant(own) for name, own in x.items()} if isinstance(x, dict) else constant(x)
        output = model.eval()(graph, x)
        check_output(output, type(model).__name__, part.graph.n_dst, n_out)
        return whole, as_array(output if config.embeddings is None else graph.rows(output, run.model.spec)).copy()


def _with_labels(comm, training, part, x, n_classes):
    """The input of a model that sees labels: all of the training nodes', as in evaluation."""
    train = np.flatnonzero(part.rows.train)
    others = np.flatnonzero(np.asarray(part.rows.val) | np.asarray(part.rows.test))
    inputs, ids = LabelInputs(training.label_inputs, n_classes), np.asarray(part.graph.dst_ids)
    shown = ShownLabels(inputs, comm, x, train, ids[train], np.asarray(part.rows.labels)[train], others, training.seed)
    shown.show_all()
    return shown.x


class _Layers:
    """A graph that keeps what the layer after one gets, which is what that one made."""

    def __init__(self, graph, layer):
        self._graph, self._layer, self._entered, self._kept = graph, layer, 0, None

    def __getattr__(self, name):
        return getattr(self._graph, name)

    def layers(self, n):
        return [self for _ in self._graph.layers(n)]

    def enter(self, h):
        if self._entered == self._layer:
            self._kept = h
        self._entered += 1
        return self, h

    def rows(self, output, model):
        """The layer's rows; the last one's are the output."""
        if self._layer > self._entered:
            has = f"has {self._entered} layers" if self._entered else "does not use graph.layers, so no layer is known"
            raise ConfigError(f"--embeddings {self._layer}: the model {model} {has}")
        return output if self._kept is None else self._kept


def _arrays(config, task, found):
    """What goes into each of `_paths`."""
    if task == "link" and config.links is not None:
        return [found[:, 0]]
    if config.embeddings is not None or task == "regress":
        return [found]
    with no_grad():
        probabilities = (ops.softmax(Tensor(found), 1) if task == "classify" else ops.sigmoid(Tensor(found))).data
    labels = found.argmax(1) if task == "classify" else (found > 0).astype(np.uint8)
    return [labels, probabilities]


def main(argv=None):
    """Predict as the command line says; return the exit status, or exit with it."""
    return command.main(argv, parse, lambda: predict)


if __name__ == "__main__":
    sys.exit(main())
