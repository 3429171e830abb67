"""Values that a run is made with, derived from its options and from the class of its model."""

from typing import Any, NamedTuple

from sarlite import optim
from sarlite.cli import class_options
from sarlite.cli.link_options import LinkOptions
from sarlite.cli.options import MinibatchOptions, OutputOptions, ReadoutOptions, RunOptions, TrainingOptions
from sarlite.data.dataset import SPLITS
from sarlite.errors import ConfigError
from sarlite.graph.correct_and_smooth import CorrectAndSmooth
from sarlite.schedule.modes import Mode
from sarlite.schedule.schedule import Options
from sarlite.train.edge_values import wanted
from sarlite.train.load import Source
from sarlite.train.model_loading import ModelSpec
from sarlite.user_code import errors_of, load_class, names_file


class Settings(NamedTuple):
    """The values that a run is made with.

    Attributes
    ----------
    source : Source
        The data, and how they are divided.
    graph : Options
        How the graph's rows travel.
    model : ModelSpec
    batches : MinibatchOptions, optional
        None if the run trains full-batch.
    training : TrainingOptions
    output : OutputOptions
    links : LinkOptions
    graphs : ReadoutOptions
    schedule : callable
        Factor of the learning rate by epoch. Its state belongs to one rank.
    smoother : CorrectAndSmooth, optional
        Applied to the best model's output.
    """

    source: Source
    graph: Options
    model: ModelSpec
    batches: MinibatchOptions | None = None
    training: TrainingOptions = TrainingOptions()
    output: OutputOptions = OutputOptions()
    links: LinkOptions = LinkOptions()
    graphs: ReadoutOptions = ReadoutOptions()
    schedule: optim.Factor = optim.constant()
    smoother: CorrectAndSmooth | None = None


def settings(options: RunOptions, cls: Any = None) -> Settings:
    """Return the values that a run with some options is made with.

    Parameters
    ----------
    options : RunOptions
    cls : class, optional
        The model's class; by default it is found.

    Raises
    ------
    ConfigError
        A value is refused by the thing that is made with it.
    """
    model, training, minibatch = options.model.spec(cls), options.training, options.minibatch
    minibatch.at_remote()  # which refuses what no cache can have
    if minibatch.temporal and not minibatch.batch_size:
        raise ConfigError(f"temporal {minibatch.temporal}: each seed sees the graph at a time of its own, so there is no full "
                          "batch of all: minibatches do it, --batch-size 1000 --fanouts 10,10; --time-split alone divides "
                          "rows by time", "temporal")
    class_options.check(training)
    links = options.links.for_metric(training.metric) if training.task == "link" else options.links
    return Settings(source_of(options, model.cls), graph_of(options, model.cls), model,
                    minibatch if minibatch.batch_size else None, training, options.output, links,
                    options.graphs, optim.schedule(training.lr_schedule, training.epochs), options.smoothing.smoother())


def source_of(options: RunOptions, cls: Any = None) -> Source:
    """Return the data that the options name, for a model's class."""
    data, partition = options.data, options.partition
    values = wanted(cls, data.edge_weights, data.edge_features, signed=".py:" in options.model.model)
    loops = getattr(cls, "self_loops", False) if data.self_loops is None else data.self_loops
    # labels of nodes are not read if labels of edges are predicted
    task = options.training.task if options.links.edge_labels is None else "link"
    return Source(data.data, task, options.model.dtype, normalize=data.normalize_features, self_loops=loops,
                  graphs=not getattr(cls, "relational", False), edge_values=values, partition=partition.partition,
                  order=partition.order, balance=partition.balance, seed=options.training.seed, verify=data.verify,
                  progress=options.output.progress, allow_empty=SPLITS if options.training.time_split else (),
                  times=bool(options.training.time_split or options.minibatch.temporal))


def graph_of(options: RunOptions, cls: Any = None) -> Options:
    """Return how the graph's rows travel, for a model's class. Nothing is fetched ahead unless an option says so.

    Sums that exact numerics push are float64. Gradients are therefore fetched by default in exact numerics, except over
    parts of the graph and over relations, which would have to be computed separately.
    """
    schedule, training = options.schedule, options.training
    separate = options.minibatch.batch_size or training.mfg or getattr(cls, "relational", False)
    fetch = "fetch" if training.numerics == "exact" and not separate else None
    return Options(_mode(schedule.mode), schedule.prefetch or 0, schedule.backward or fetch, schedule.rows,
                   schedule.peers_at_once)


def _mode(spec: str) -> str | Mode:
    """Return the name of a mode as it is; of a class in a file an object, made without arguments."""
    if not names_file(spec):
        return spec
    with errors_of(spec, "mode"):
        made = load_class("mode", spec)()
    lacking = [name for name in ("plan", "fetch", "keeps_rows", "reverses", "in_step") if not hasattr(made, name)]
    if lacking:
        raise ConfigError(f"mode {spec}: the class has no {lacking[0]}: docs/how-to/own-mode.md tells what a mode has",
                          "mode")
    found: Mode = made
    return found
