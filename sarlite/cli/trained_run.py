"""A trained run, rebuilt from its checkpoint for commands such as predict: options, data, model and input rows."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sarlite import nn
from sarlite.cli import resume
from sarlite.cli.combinations import Run, refuse
from sarlite.cli.config import resolve
from sarlite.cli.decision import Decision, decision_of
from sarlite.cli.option import OptionValues, option, options_of
from sarlite.cli.options import OPTIONS, ModelOptions, RunOptions
from sarlite.cli.run import new_model, tell
from sarlite.cli.settings import Settings, settings
from sarlite.comm import Communicator, together
from sarlite.comm.launch import rank_threads
from sarlite.command import show
from sarlite.data.dataset import SPLITS
from sarlite.data.targets import MISSING, labelled
from sarlite.errors import CheckpointError, ConfigError
from sarlite.minibatch import NeighborLoader
from sarlite.minibatch.temporal import Temporal
from sarlite.nn import Module
from sarlite.tape import Tensor
from sarlite.tape.tensor import as_array
from sarlite.tasks.shown_labels import LabelInputs, ShownLabels
from sarlite.tasks.task_table import TASKS
from sarlite.train import checkpoint, propagated
from sarlite.train.edge_values import ARRAYS
from sarlite.train.identity import difference, identity
from sarlite.train.load import Shard, kind, load, widths_text
from sarlite.train.row_keys import row_keys
from sarlite.train.trainer_arguments import check_output
from sarlite.types import Array, JsonObject
from sarlite.user_code import errors_of

TAKEN = ("data", "model", "edge_weights", "edge_features", "mode", "prefetch", "partition", "order", "balance",
         "threads", "ranks", "stall_timeout", "propagated", "progress", "verify")  # fmt: skip
"""Training options that these commands have too. All other options come from the checkpoint."""
_FROM_CHECKPOINT = {"data", *options_of(ModelOptions),
                    *(name for name, option in OPTIONS.items() if option.on_resume == "fixed")}
OF_THE_RUN = {name: replace(OPTIONS[name], default=None, otherwise="as the run") for name in TAKEN if name in _FROM_CHECKPOINT}
"""Options of `TAKEN`, by name, whose default is the value in the checkpoint."""
_IN_TIME = ("batch_size", "fanouts", "eval_fanouts", "sampler")
"""Minibatch options that are also taken from the checkpoint if the run has --temporal."""
Features = Any
"""Input rows of a model: an array, or for relational data a dict of arrays by node type."""
Own = TypeVar("Own", bound="CheckpointOptions")


@dataclass(frozen=True)
class CheckpointOptions:
    """Options of every command that computes with a run's checkpoint."""

    checkpoint: str = option(None, "folder of a run of sarlite.train, or its checkpoint, with the model and all options",
                             metavar="RUN")
    threshold: float | None = option(
        None, "probability from which on the positive one of two classes, or a label, is predicted", metavar="P",
        inside="above 0 and below 1", otherwise="as the run chose it")
    weights: str = option("best", "parameters of the best epoch, or of the last epoch", choices=("best", "last"))
    overrides: OptionValues = field(default_factory=dict)
    """Training options of the command line by name, which override the options in the checkpoint."""

    def with_overrides(self: Own, values: OptionValues) -> Own:
        """Return a copy of these options with the training options `values` of the command line. If the run was named by its folder, the
        copy has the path of the folder's checkpoint file.

        The number of threads is left out, because it may differ between ranks.
        """
        same_on_ranks = {name: value for name, value in values.items() if name != "threads"}
        return replace(self, overrides=same_on_ranks, checkpoint=checkpoint.path_of(self.checkpoint))


class TrainedRun(NamedTuple):
    """Contents of a checkpoint, the options of its run, and the options of the command that uses it.

    Attributes
    ----------
    config : CheckpointOptions
        Options of the command, an instance of the command's own subclass.
    options : RunOptions
        Options of the run, overridden by the training options of the command line.
    run : Settings
        Settings that follow from `options`.
    meta : dict
        Metadata of the checkpoint.
    tensors : dict
        Arrays of the checkpoint, from `checkpoint.read`.
    decision : Decision or None
        Rule that derives classes from probabilities; None if the likeliest class is predicted.
    """

    config: Any
    options: RunOptions
    run: Settings
    meta: JsonObject
    tensors: Mapping[str, Array]
    decision: Decision | None

    @property
    def task(self) -> str:
        """Name of the run's task, such as "classify" or "link"."""
        return str(self.options.training.task)

    @property
    def form(self) -> str:
        """Kind of the targets of the run's task, such as "classify" or "multilabel"."""
        return TASKS[self.task].form_name(self.task)

    @property
    def has_other_data(self) -> bool:
        """True if --data names other data than the training run's."""
        return self.run.source.spec != self.meta["options"].get("data")


def open_run(comm: Communicator, config: CheckpointOptions, check: Callable[[RunOptions], object]) -> TrainedRun:
    """Return the trained run whose checkpoint `config` names. `check(options)` raises an error if the command does not apply to a
    run with these options. Collective.

    Parameters
    ----------
    comm : Communicator
    config : CheckpointOptions
    check : callable
        check(options) raises an error if the command does not apply to a run with these `RunOptions`.

    Raises
    ------
    SarliteError
        On every rank: the checkpoint cannot be read, or an option does not fit.
    """
    prefixes = ("best.", "model.") if config.weights == "best" else ("model.",)
    tensors, meta = checkpoint.read(comm, config.checkpoint, prefixes)

    def opened() -> TrainedRun:
        options = _options(config, meta)
        check(options)
        trained = TrainedRun(config, options, settings(options), meta, tensors, None)
        return trained._replace(decision=decision_of(config, options, meta, trained.form))

    return together(comm, opened)


def load_data(comm: Communicator, trained: TrainedRun, threads: int, scratch_folder: str | Path, command_options: OptionValues,
              tick: Callable[[], object]) -> Shard:
    """Load this rank's part of the data that --data or, without it, the checkpoint names. Classes and features get the numbers of training,
    matched by name. `command_options` are checked together with the run's options. `threads` is the number of threads, `scratch_folder` is
    for temporary files, and `tick()` reports progress. Collective.

    Parameters
    ----------
    comm : Communicator
    trained : TrainedRun
    threads : int
        Number of threads of this rank; 0 for the default.
    scratch_folder : path
        Folder for temporary files.
    command_options : dict
        Options of the command that `combinations.refuse` checks together with the run's options. "in_time" is True if
        the command computes each row at a time of its own, for runs with --temporal.
    tick : callable
        tick() is called whenever this rank makes progress.

    Returns
    -------
    Shard
        This rank's part of the data. Its classes are the classes of the checkpoint.

    Raises
    ------
    SarliteError
        On every rank: the data cannot be read, do not fit the model, or lack values that training used. Edge values that
        training did not use are refused unless an option says to use or to ignore them.
    """
    config, run, meta = trained.config, trained.run, trained.meta
    if run.batches and run.batches.temporal and not command_options.get("in_time"):
        raise ConfigError(f"checkpoint {config.checkpoint}: its run has --temporal {run.batches.temporal}, so each row is "
                          "computed at its own time, but this command computes all rows on the whole graph")
    kinds = Run.of({**trained.options.values, **command_options}, run.model.cls, kind(comm, run.source.spec))
    together(comm, lambda: refuse(kinds))
    source = run.source._replace(allow_empty=SPLITS, edge_values=_as_trained(run.source.edge_values, meta),
                                 schema=meta.get("schema"))
    graph = run.graph.resolved(comm, rank_threads(comm, threads))
    graph = graph._replace(backward="push")  # without a backward pass, no plan of reversed edges is needed
    with errors_of(trained.options.schedule.mode, "mode"):
        part = load(comm, source, graph, scratch_folder, tick)
    n_train = sum(comm.allgather(int(np.count_nonzero(part.rows.train))))
    part = together(comm, lambda: _with_classes(trained, part))
    together(comm, lambda: _check_time_kind(trained, part))
    together(comm, lambda: _check_data(trained, part, n_train))
    tell(comm, [*part.left_out, *(part.by_position if trained.has_other_data else ())])
    if "data" not in config.overrides:
        _check_stored_path(comm, trained, identity(part.graph, part.rows, meta["data"]["classes"]))
    return part


def restore_model(comm: Communicator, trained: TrainedRun, part: Shard) -> Any:
    """Return the model of the run `trained` with the checkpoint's parameters, for evaluation on the data `part`. Collective."""
    model = new_model(comm, trained.run, part._replace(n_classes=trained.meta["data"]["classes"]),
                      nn.Random(trained.run.training.seed))
    keys = row_keys(model, part.graph, part.names)
    with checkpoint.errors_of(trained.config.checkpoint):
        matched = checkpoint.restore_model(comm, model, trained.tensors, trained.meta, keys)
    tell(comm, _learned_rows_lines(model, matched, keys, trained.has_other_data))
    return model.eval()


def outputs_in_time(trained: TrainedRun, part: Shard, model: Callable[..., Tensor], x: Features, temporal: Temporal,
                    fanouts: Sequence[int]) -> Array:
    """Compute the output of `model` for each row of this rank, (n_local, n_outputs), from the input rows `x` and from edges up to the row's
    own time. `temporal` has these times. `fanouts` is the number of in-edges per node for each layer. Collective.

    Parameters
    ----------
    trained : TrainedRun
        A run with --temporal.
    part : Shard
    model : Module
        Model that is called on batches.
    x : ndarray, or dict of str to ndarray
        Input rows, shape (n_local, n_in), for relational data by node type.
    temporal : Temporal
        Times of the rows, and the rule that samples edges in time.
    fanouts : sequence of int
        Number of in-edges sampled per node, for each layer; -1 takes all in-edges.

    Returns
    -------
    ndarray
        Outputs, shape (n_local, n_outputs), in the model's dtype.
    """
    batches: Any = trained.run.batches
    loader = NeighborLoader(part.graph, x, None, slice(None), fanouts=fanouts, batch_size=batches.batch_size,
                            seed=trained.run.training.seed, sampler=batches.sampler, temporal=temporal)
    outputs = np.empty((part.graph.n_dst, trained.meta["data"]["classes"]), trained.run.model.dtype)
    for batch in loader:
        output = model(batch, batch.x)
        check_output(output, type(model).__name__, batch.n_dst, outputs.shape[1])
        outputs[batch.outputs] = as_array(output)[:, : outputs.shape[1]]
    return outputs


def input_rows(comm: Communicator, trained: TrainedRun, part: Shard, model: Module) -> Features:
    """Return the rows of inputs that `model` takes for this rank's nodes of the data `part`, shape (n_local, n_in); for relational
    data a dict of such arrays by node type. Collective.

    Returns
    -------
    ndarray, or dict of str to ndarray
        Features, shape (n_local, n_in), for relational data by node type; or propagated features; or features followed
        by the one-hot labels of the training nodes.
    """
    training, n_out = trained.run.training, trained.meta["data"]["classes"]
    data = identity(part.graph, part.rows, n_out) if training.propagated else None
    x = propagated.inputs(comm, model, part, data, training.propagated, trained.run.source.verify)
    if not training.label_inputs:
        return x
    rows = {name: np.flatnonzero(getattr(part.rows, name)) for name in SPLITS}
    shown = ShownLabels.of(LabelInputs(training.label_inputs, n_out), part.graph, x, np.asarray(part.rows.labels),
                           rows, training.seed)
    shown.show_all()  # as in evaluation
    return shown.x


def _options(config, meta):
    """Return the options of the run from the checkpoint's metadata `meta`. Training options on the command line, in `config`, override
    them.
    """
    resume.check_run(config.checkpoint, meta)
    taken = {*_FROM_CHECKPOINT, *(_IN_TIME if meta["options"].get("temporal") else ())}
    before = {name: value for name, value in meta["options"].items() if name in taken}
    model = config.overrides.get("model", before.get("model"))
    if model != before.get("model") and not resume.same_class(before.get("model"), model):
        raise ConfigError(f"--model {model}: the model of {config.checkpoint} is {before.get('model')}")
    task = meta.get("task", "classify")
    return resolve(config.overrides, before=before, checkpoint=config.checkpoint).replace(task=task)


def _as_trained(values, meta):
    """Return a copy of `values`, an `EdgeValueUse`, that refuses edge values which training did not use, by the checkpoint's metadata
    `meta`. Edge values that a flag requests stay allowed.
    """
    reason = "training used none" if "used" in meta else "the checkpoint does not name any that training used"
    undecided = {name: None for name in ARRAYS if getattr(values, name) == "there"}
    return values._replace(**undecided, reason=reason)


def _with_classes(trained, part):
    """Return a copy of the data `part` whose labels have the class numbers of training, matched by class name."""
    trained_names, names = trained.meta.get("class_names"), part.class_names
    if names is None or trained_names in (None, names) or not TASKS[part.task].reads_labels:
        return part
    unknown = [name for name in names if name not in trained_names]
    if unknown:
        raise CheckpointError(f"checkpoint {trained.config.checkpoint}: --data {trained.run.source.spec} have labels that "
                              f"are not among its classes, {', '.join(trained_names)}: {', '.join(unknown)}")
    numbers, labels = np.array([*map(trained_names.index, names), -1]), part.rows.labels  # label -1, no label, stays -1
    if part.task == "multilabel":
        trained_labels = np.zeros((len(labels), len(trained_names)), np.uint8)
        trained_labels[:, numbers[:-1]] = labels
        trained_labels[~labelled(labels, part.task)] = MISSING
    else:
        trained_labels = numbers[labels]
    rows = part.rows._replace(labels=trained_labels)
    return part._replace(rows=rows, n_classes=len(trained_names), class_names=trained_names)


def _check_time_kind(trained, part):
    """Raise a CheckpointError if the run uses --edge-recency and was trained on dates while the times of the data `part` are
    integers, or the reverse.
    """
    trained_kind, kind = trained.meta.get("time_kind"), part.time_kind
    if trained.options.minibatch.edge_recency and trained_kind != kind:
        raise CheckpointError(f"checkpoint {trained.config.checkpoint}: its run has --edge-recency with times that are {trained_kind}, "
                              f"but the times of --data {trained.run.source.spec} are {kind}")


def _check_data(trained, part, n_train):
    """Raise a CheckpointError if the data `part` have other numbers of features or classes than the model. Also raise it if the
    model takes labels as inputs and the data have no training nodes on any rank (`n_train` 0) or no labels.
    """
    where, run = f"checkpoint {trained.config.checkpoint}", trained.run
    if run.training.label_inputs and not (n_train and part.n_classes):
        lacking = "no training nodes" if part.n_classes else "no labels"
        raise CheckpointError(f"{where}: its model takes the training nodes' labels as inputs, as --label-inputs "
                              f"{run.training.label_inputs} said, but --data {run.source.spec} have {lacking}")
    data, features = trained.meta["data"], part.rows.features
    width = widths_text(features) if isinstance(features, dict) else features.shape[1]
    classes = part.n_classes if TASKS[part.task].reads_labels else None
    sizes = {"features": (data.get("features"), width), "classes": (data.get("classes"), classes or data.get("classes"))}
    differing = {name: pair for name, pair in sizes.items() if pair[0] != pair[1]}
    if differing:
        needed, available = (", ".join(f"{pair[at]} {name}" for name, pair in differing.items()) for at in (0, 1))
        raise CheckpointError(f"{where}: its model is for {needed}, but --data {run.source.spec} have {available}")


def _check_stored_path(comm, trained, loaded):
    """Raise a CheckpointError unless the data loaded from the path in the checkpoint are the training data: a relative path may lead to
    other data from another folder. `loaded` is the identity (sizes and digest) of the loaded data. Rank 0 prints the path.
    """
    data, spec = trained.meta["data"], trained.run.source.spec
    differing = difference({name: data.get(name) for name in loaded}, loaded)
    if differing and "digest" in data:
        raise CheckpointError(f"checkpoint {trained.config.checkpoint}: the data at its path {spec} differ from the "
                              f"training data: {differing}; give --data to use other data")
    if comm.rank == 0:
        show(f"data {spec}, from the checkpoint", sys.stderr)


def _learned_rows_lines(model, matched, data_row_keys, other_data):
    """Yield warnings about parameters with a learned row for each node: nodes without a row in the checkpoint, or rows matched by position
    although the data are others (`other_data`). `matched` maps each parameter to its match of rows by node names, or None; `data_row_keys`
    has the parameters whose nodes have names in the data.
    """
    types = {name: parameter.node_type for name, parameter in model.named_parameters()}
    for name, rows in matched.items():
        subject = f"learned rows{' of type ' if types[name] else ''}{types[name]}"
        if rows is None and other_data:
            unnamed = "the checkpoint has" if name in data_row_keys else "the data have"
            yield f"{subject}: matched by position, because {unnamed} no names of nodes"
        elif rows is not None and rows.n_missing:
            yield (f"{subject}: {rows.n_missing:,} of {rows.n_here:,} nodes have none in the checkpoint; each gets the "
                   "mean row")
