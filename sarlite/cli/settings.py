"""Settings of a run, derived from its options and from the class of its model."""

from collections.abc import Callable
from typing import Any, NamedTuple

from sarlite import optim
from sarlite.cli import class_options
from sarlite.cli.link_options import LinkOptions
from sarlite.cli.options import MinibatchOptions, OutputOptions, ReadoutOptions, RunOptions, TrainingOptions
from sarlite.data.dataset import SPLITS
from sarlite.errors import ConfigError
from sarlite.graph.correct_and_smooth import CorrectAndSmooth
from sarlite.nn import Module
from sarlite.schedule.modes import Mode
from sarlite.schedule.schedule import Options
from sarlite.train.edge_values import edge_value_use
from sarlite.train.load import Source
from sarlite.train.model_loading import ModelSpec
from sarlite.user_code import errors_of, load_class, names_file


class Settings(NamedTuple):
    """Objects that training is configured with, made from the options of a run.

    See `settings`, which makes them.

    Attributes
    ----------
    source : Source
        The data, and how they are divided among ranks.
    graph : Options
        Schedule of the exchange of rows between ranks.
    model : ModelSpec
        Class and keywords of the model.
    batches : MinibatchOptions, optional
        None if the run trains full-batch.
    training : TrainingOptions
    output : OutputOptions
    links : LinkOptions
    graphs : ReadoutOptions
    schedule : callable
        schedule(epoch) -> factor of the learning rate. Each rank needs a schedule of its own, because it has state.
    smoother : CorrectAndSmooth, optional
        Postprocessing of the best model's output; None for none.
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


def settings(options: RunOptions, cls: Callable[..., Module] | None = None) -> Settings:
    """Return a `Settings`, the objects that training is configured with, made from the `options` of a run, which are checked together.
    `cls` is the model's class; None loads the class that the options name.

    Parameters
    ----------
    options : RunOptions
    cls : class, optional
        The model's class; by default the class that the options name.

    Raises
    ------
    ConfigError
        An option's value is invalid.

    Examples
    --------
    >>> from sarlite.cli import config
    >>> run = settings(config.parse(["--model", "gcn", "--batch-size", "100", "--fanouts", "5,5"]))
    >>> run.model.cls.__name__, run.batches.fanouts, run.graph.mode
    ('GCN', [5, 5], 'sar')
    """
    model, training, minibatch = options.model.spec(cls), options.training, options.minibatch
    minibatch.at_remote()  # raises for invalid options of the cache
    if minibatch.temporal and not minibatch.batch_size:
        raise ConfigError(f"temporal {minibatch.temporal}: each seed sees the graph at its own time, so training needs "
                          "minibatches: add --batch-size 1000 --fanouts 10,10. To divide only the rows by time, give "
                          "--time-split without --temporal", "temporal")
    class_options.check(training)
    links = options.links.for_metric(training.metric) if training.task == "link" else options.links
    return Settings(source_of(options, model.cls), graph_of(options, model.cls), model,
                    minibatch if minibatch.batch_size else None, training, options.output, links,
                    options.graphs, optim.schedule(training.lr_schedule, training.epochs), options.smoothing.smoother())


def source_of(options: RunOptions, cls: Any = None) -> Source:
    """Return a `Source`, which says what data to read and how ranks divide them, from the `options` of a run. `cls` is the model's class,
    for options whose default depends on the class.

    Parameters
    ----------
    options : RunOptions
    cls : class, optional
        The model's class, which decides about self loops and edge values if no option does.
    """
    data, partition = options.data, options.partition
    values = edge_value_use(cls, data.edge_weights, data.edge_features, signed=".py:" in options.model.model)
    loops = getattr(cls, "self_loops", False) if data.self_loops is None else data.self_loops
    # labels of nodes are not read if labels of edges are predicted
    task = options.training.task if options.links.edge_labels is None else "link"
    return Source(data.data, task, options.model.dtype, normalize=data.normalize_features, self_loops=loops,
                  graphs=not getattr(cls, "relational", False), edge_values=values, partition=partition.partition,
                  order=partition.order, balance=partition.balance, seed=options.training.seed, verify=data.verify,
                  progress=options.output.progress, allow_empty=SPLITS if options.training.time_split else (),
                  times=bool(options.training.time_split or options.minibatch.temporal))


def graph_of(options: RunOptions, cls: Callable[..., Module] | None = None) -> Options:
    """Return the schedule of a graph's exchange of rows between ranks (mode, prefetching, dtype of the rows) from the `options` of
    a run. `cls` is the model's class; None counts as a model of one relation.

    Parameters
    ----------
    options : RunOptions
    cls : class, optional
        The model's class.

    Notes
    -----
    With exact numerics the backward pass fetches gradients by default, because pushed sums would be float64.
    Minibatches, message-flow graphs and relational models push gradients also with exact numerics.
    """
    schedule, training = options.schedule, options.training
    separate = options.minibatch.batch_size or training.mfg or getattr(cls, "relational", False)
    fetch = "fetch" if training.numerics == "exact" and not separate else None
    return Options(_mode(schedule.mode), schedule.prefetch, schedule.backward or fetch, schedule.rows,
                   schedule.peers_at_once)


def _mode(spec: str) -> str | Mode:
    """Return the schedule mode that `spec` stands for: the name of a mode unchanged; for path/to/file.py:Class, an instance of the
    user's class.
    """
    if not names_file(spec):
        return spec
    with errors_of(spec, "mode"):
        mode: Mode = load_class("mode", spec)()
    lacking = [name for name in ("plan", "fetch", "keeps_rows", "reverses", "in_step") if not hasattr(mode, name)]
    if lacking:
        raise ConfigError(f"mode {spec}: the class has no {lacking[0]}: docs/how-to/own-mode.md lists the methods of a "
                          "mode", "mode")
    return mode
