"""A trained run as further commands use it: its options, data, model and input rows, made from its checkpoint."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sarlite import nn
from sarlite.cli import resume
from sarlite.cli.combinations import Run, refuse
from sarlite.cli.config import resolve
from sarlite.cli.decision import Decision, decision_of
from sarlite.cli.option import option, options_of
from sarlite.cli.options import OPTIONS, ModelOptions, RunOptions
from sarlite.cli.run import new_model, tell
from sarlite.cli.settings import Settings, settings
from sarlite.comm import Communicator, together
from sarlite.command import show
from sarlite.data.dataset import SPLITS
from sarlite.errors import CheckpointError, ConfigError
from sarlite.minibatch import NeighborLoader
from sarlite.minibatch.temporal import Temporal
from sarlite.tape.tensor import as_array
from sarlite.tasks.shown_labels import LabelInputs, ShownLabels
from sarlite.tasks.task_table import TASKS
from sarlite.train import checkpoint, propagated
from sarlite.train.edge_values import ARRAYS
from sarlite.train.identity import difference, identity
from sarlite.train.load import Shard, kind, load, prefetched, widths_text
from sarlite.train.row_keys import row_keys
from sarlite.train.trainer_arguments import check_output
from sarlite.types import Array
from sarlite.user_code import errors_of

TAKEN = ("data", "model", "edge_weights", "edge_features", "mode", "prefetch", "partition", "order", "balance",
         "threads", "ranks", "stall_timeout", "propagated", "progress", "verify")  # fmt: skip
"""Training options that these commands have too. The checkpoint has the options of data and model."""
_FROM_CHECKPOINT = {"data", *options_of(ModelOptions),
                    *(name for name, option in OPTIONS.items() if option.on_resume == "fixed")}


_IN_TIME = ("batch_size", "fanouts", "eval_fanouts", "sampler")
"""Options of minibatches that a model is computed with if its run has --temporal."""


@dataclass(frozen=True)
class CheckpointOptions:
    """Options of every command that computes with a run's checkpoint."""

    checkpoint: str = option(None, "folder of a run of sarlite.train, or its checkpoint, with the model and all options",
                             metavar="RUN")
    threshold: float | None = option(
        None, "probability from which on the positive one of two classes, or a label, is predicted", metavar="P",
        inside="above 0 and below 1", otherwise="as the run chose it")
    weights: str = option("best", "parameters of the best epoch, or of the last epoch", choices=("best", "last"))
    given: Mapping[str, Any] = field(default_factory=dict)
    """Training options of the command line, by name, which stand over the options in the checkpoint."""

    def with_given(self, given: Mapping[str, Any]) -> Any:
        """Return these options with the training options of the command line, and the path of the checkpoint's file.

        The number of threads is left out, because it may differ between ranks.
        """
        same_on_ranks = {name: value for name, value in given.items() if name != "threads"}
        return replace(self, given=same_on_ranks, checkpoint=checkpoint.path_of(self.checkpoint))


class TrainedRun(NamedTuple):
    """Contents of a checkpoint, and the options of its run.

    Attributes
    ----------
    config : CheckpointOptions
        Options of the further command.
    options : RunOptions
        Options of the run, overridden by the training options of the command line.
    run : Settings
    meta : dict
        Metadata of the checkpoint.
    tensors : dict
        Arrays of the checkpoint, as of `checkpoint.read`.
    decision : Decision, or None
        How classes follow from probabilities; None for the likeliest class.
    """

    config: Any
    options: RunOptions
    run: Settings
    meta: Mapping[str, Any]
    tensors: Mapping[str, Any]
    decision: Decision | None

    @property
    def task(self) -> str:
        """Name of the task."""
        return str(self.options.training.task)

    @property
    def form(self) -> str:
        """Name of the targets' form, such as "classify"."""
        return TASKS[self.task].form_name(self.task)

    @property
    def has_other_data(self) -> bool:
        """True if the data have another name than the training data."""
        return self.run.source.spec != self.meta["options"].get("data")


def open_run(comm: Communicator, config: Any, check: Callable[[RunOptions], object]) -> TrainedRun:
    """Read a run's checkpoint and derive the run's options. Collective.

    Parameters
    ----------
    comm : Communicator
    config : CheckpointOptions
    check : callable
        Raises an error if the command does not go with the options of the run.

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
        found = TrainedRun(config, options, settings(options), meta, tensors, None)
        return found._replace(decision=decision_of(config, options, meta, found.form))

    return together(comm, opened)


def load_data(comm: Communicator, trained: TrainedRun, threads: int, scratch: str | Path, about: Mapping[str, Any],
              tick: Callable[[], Any]) -> Shard:
    """Load the data that the command line or the checkpoint names, matched by name with the training's. Collective.

    Parameters
    ----------
    comm : Communicator
    trained : TrainedRun
    threads : int
    scratch : path
        Folder for temporary files.
    about : dict
        Further facts of the command, which some kinds of run refuse; see `cli.combinations`. "in_time" is True if the
        command computes batches that are sampled in time.
    tick : callable

    Raises
    ------
    SarliteError
        On every rank: the data cannot be read, or the model does not fit them; the data have values on edges that
        training did not use, and nothing says what is made of them; or they lack what training used.
    """
    config, run, meta = trained.config, trained.run, trained.meta
    if run.batches and run.batches.temporal and not about.get("in_time"):
        raise ConfigError(f"checkpoint {config.checkpoint}: its run has --temporal {run.batches.temporal}, so each row is "
                          "computed at a time of its own, but this command computes all rows on the whole graph")
    kinds = Run.of({**trained.options.values, **about}, run.model.cls, kind(comm, run.source.spec))
    together(comm, lambda: refuse(kinds))
    source = run.source._replace(allow_empty=SPLITS, edge_values=_as_trained(run.source.edge_values, meta),
                                 schema=meta.get("schema"))
    graph = prefetched(comm, run.graph, trained.options.schedule.prefetch, threads)
    graph = graph._replace(backward="push")  # no plan of the reversed edges is made
    with errors_of(trained.options.schedule.mode, "mode"):
        part = load(comm, source, graph, scratch, tick)
    n_train = sum(comm.allgather(int(np.count_nonzero(part.rows.train))))
    part = together(comm, lambda: _with_classes(trained, part))
    together(comm, lambda: _check_data(trained, part, n_train))
    tell(comm, [*part.left_out, *(part.by_position if trained.has_other_data else ())])
    if "data" not in config.given:
        _check_named(comm, trained, identity(part.graph, part.rows, meta["data"]["classes"]))
    return part


def restore_model(comm: Communicator, trained: TrainedRun, part: Shard) -> Any:
    """Return the model with the parameters of the checkpoint, in evaluation mode. Collective."""
    model = new_model(comm, trained.run, part._replace(n_classes=trained.meta["data"]["classes"]),
                      nn.Random(trained.run.training.seed))
    keys = row_keys(model, part.graph, part.names)
    with checkpoint.errors_of(trained.config.checkpoint):
        matched = checkpoint.restore_model(comm, model, trained.tensors, trained.meta, keys)
    tell(comm, _of_learned_rows(model, matched, keys, trained.has_other_data))
    return model.eval()


def outputs_in_time(trained: TrainedRun, part: Shard, model: Any, x: Any, temporal: Temporal, fanouts: Sequence[int]) -> Array:
    """Return the outputs of this rank's rows, each computed at its seed's time, (n_local, n_outputs). Collective.

    Parameters
    ----------
    trained : TrainedRun
        Its run has --temporal.
    part : Shard
    model : callable Module
    x : (n_local, n_features) array, or a dict of arrays by node type
    temporal : Temporal
    fanouts : sequence of int
        Edges to pick in each layer; -1 picks all.
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


def input_rows(comm: Communicator, trained: TrainedRun, part: Shard, model: Any) -> Any:
    """Return this rank's input rows of the model: features, propagated features, or features beside known labels.

    Collective. For relational data the rows are by node type.
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
    """Return the options of the run that wrote the checkpoint, overridden by the options of the command line."""
    resume.check_run(config.checkpoint, meta)
    taken = {*_FROM_CHECKPOINT, *(_IN_TIME if meta["options"].get("temporal") else ())}
    before = {name: value for name, value in meta["options"].items() if name in taken}
    model = config.given.get("model", before.get("model"))
    if model != before.get("model") and not resume.same_class(before.get("model"), model):
        raise ConfigError(f"--model {model}: the model of {config.checkpoint} is {before.get('model')}")
    task = meta.get("task", "classify")
    return resolve(config.given, before=before, checkpoint=config.checkpoint).replace(task=task)


def _as_trained(values, meta):
    """Return `values` with arrays that training did not use refused, unless the command line requests them."""
    reason = "training used none" if "used" in meta else \
        "the checkpoint does not say whether training used any, so it is taken that it did not"
    own = {name: None for name in ARRAYS if getattr(values, name) == "there"}
    return values._replace(**own, reason=reason)


def _with_classes(trained, part):
    """Return `part` with the labels of the data as numbers of the checkpoint's classes, which are matched by name."""
    there, here = trained.meta.get("class_names"), part.class_names
    if here is None or there in (None, here) or not TASKS[part.task].reads_labels:
        return part
    unknown = [name for name in here if name not in there]
    if unknown:
        raise CheckpointError(f"checkpoint {trained.config.checkpoint}: --data {trained.run.source.spec} have labels "
                              f"that are none of its classes, {', '.join(there)}: {', '.join(unknown)}")
    numbers = np.array([*map(there.index, here), -1])  # the last is of nodes without a label, -1
    rows = part.rows._replace(labels=numbers[part.rows.labels])
    return part._replace(rows=rows, n_classes=len(there), class_names=there)


def _check_data(trained, part, n_train):
    """Raise an error if the model does not fit the data. Data without labels fit any number of classes."""
    where, run = f"checkpoint {trained.config.checkpoint}", trained.run
    if run.training.label_inputs and not (n_train and part.n_classes):
        lacking = "no training nodes" if part.n_classes else "no labels"
        raise CheckpointError(f"{where}: its model takes the training nodes' labels as inputs, as --label-inputs "
                              f"{run.training.label_inputs} said, but --data {run.source.spec} have {lacking}")
    data, features = trained.meta["data"], part.rows.features
    width = widths_text(features) if isinstance(features, dict) else features.shape[1]
    classes = part.n_classes if TASKS[part.task].reads_labels else None
    there, here = (data.get("features"), data.get("classes")), (width, classes or data.get("classes"))
    if there != here:
        differing = [pair for pair in zip(("features", "classes"), there, here) if pair[1] != pair[2]]
        said, told = (", ".join(f"{pair[at]} {pair[0]}" for pair in differing) for at in (1, 2))
        raise CheckpointError(f"{where}: its model is for {said}, but --data {run.source.spec} have {told}")


def _check_named(comm, trained, here):
    """Raise a CheckpointError if the path in the checkpoint leads to other data than the training data; else print the path.

    A relative path may lead to other data here. `here` is the identity of the data at the path.
    """
    data, spec = trained.meta["data"], trained.run.source.spec
    found = difference({name: data.get(name) for name in here}, here)
    if found and "digest" in data:
        raise CheckpointError(f"checkpoint {trained.config.checkpoint}: the data that it names, {spec}, are here not "
                              f"those of its training: {found}; --data predicts other data")
    if comm.rank == 0:
        show(f"data {spec}, as the checkpoint says", sys.stderr)


def _of_learned_rows(model, matched, keys, other_data):
    """Yield a line on the learned rows of each parameter, if some nodes have none or if position matched them."""
    types = {name: parameter.node_type for name, parameter in model.named_parameters()}
    for name, rows in matched.items():
        what = f"learned rows{' of type ' if types[name] else ''}{types[name]}"
        if rows is None and other_data:
            unnamed = "the checkpoint has" if name in keys else "the data have"
            yield f"{what}: matched by position, as {unnamed} no names of nodes"
        elif rows is not None and rows.n_missing:
            yield (f"{what}: {rows.n_missing:,} of {rows.n_here:,} nodes have none in the checkpoint; each gets the "
                   "mean row")
