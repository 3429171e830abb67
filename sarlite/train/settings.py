"""What the options mean: a small value for each thing that a run is made of."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sarlite import optim
from sarlite.command import seconds
from sarlite.minibatch import HEC
from sarlite.nn import Flat
from sarlite.propagation import CorrectAndSmooth
from sarlite.sar.schedule.schedule import Options
from sarlite.train.edge_values import wanted
from sarlite.train.graphs import GraphOptions
from sarlite.train.link_options import LinkOptions
from sarlite.train.load import Source
from sarlite.train.model import ModelSpec, first_layer, model_class
from sarlite.train.options import GRAPH_OPTIONS, HEC_OPTIONS, LINK_OPTIONS, MODEL_OPTIONS, SMOOTHING_OPTIONS


class Settings(NamedTuple):
    """A run: data, graph, model, batches, training, what is left of it, and what is made of links and of graphs."""

    source: Source
    graph: Options
    model: ModelSpec
    batches: "Batches | None"
    training: "Training"
    output: "Output"
    links: LinkOptions = LinkOptions()
    graphs: GraphOptions = GraphOptions()


def settings(options: Any, cls: Any = None) -> Settings:
    """Return what the options of a run mean.

    Parameters
    ----------
    options : Namespace
        As of `config.resolve`. Where costs alone are told, the graph's mode is "sar".
    cls : class, optional
        The model's; by default it is found.

    Raises
    ------
    ConfigError
        A value cannot be, as the thing says that it is of.
    """
    model = model_of(options, cls)
    return Settings(source_of(options, model.cls), graph_of(options, model.cls), model, batches_of(options),
                    training_of(options), output_of(options), LinkOptions(**told(options, LINK_OPTIONS)),
                    GraphOptions(**told(options, GRAPH_OPTIONS)))


def source_of(options: Any, cls: Any, **others: Any) -> Source:
    """Return which data the options name, for a model's class; `others` are fields of the result."""
    loops = getattr(cls, "self_loops", False) if options.self_loops is None else options.self_loops
    values = wanted(cls, options.edge_weights, options.edge_features, signed=".py:" in options.model)
    names = ("task", "dtype", "partition", "order", "balance", "seed", "verify", "progress")
    found = {name: getattr(options, name) for name in names}
    if options.edge_labels is not None:
        found["task"] = "link"  # nodes' labels are not looked at
    graphs = not getattr(cls, "relational", False)
    return Source(options.data, graphs=graphs, normalize=options.normalize_features, features=not options.dry_run,
                  self_loops=loops, edge_values=values, **found)._replace(**others)


def graph_of(options: Any, cls: Any = None) -> Options:
    """Return how the options say that a graph is computed with, by a model's class; without a number of rows fetched
    ahead 0 are.

    Sums that exact numerics push are float64, so gradients are fetched by default where parts of the graph are not
    taken, and where relations need not be taken apart for it.
    """
    mode = "sar" if options.dry_run else options.mode
    joined = options.batch_size or options.mfg or getattr(cls, "relational", False)
    fetch = options.numerics == "exact" and not joined
    return Options(mode, options.prefetch or 0, options.backward or ("fetch" if fetch else None), options.rows)


def model_of(options: Any, cls: Any = None) -> ModelSpec:
    """Return which model the options name."""
    told = {name: value for name in MODEL_OPTIONS if (value := getattr(options, name)) is not None}
    return ModelSpec(options.model, cls or model_class(options.model), told, options.dtype)


class Batches(NamedTuple):
    """Minibatches of `size` seeds a step; the other fields are as for `NeighborLoader`, by default or None its own."""

    size: int
    fanouts: list[int] | None = None
    eval_fanouts: list[int] | None = None
    remote: str | HEC = "exact"
    sampler: str | None = None
    sample_ahead: int | None = None
    batches: str | None = None
    lr_scale: str = "none"


def batches_of(options: Any) -> Batches | None:
    """Return the minibatches that the options ask for, None where they ask for none."""
    if not options.batch_size:
        return None
    names = ("fanouts", "eval_fanouts", "sampler", "sample_ahead", "batches")
    found = {name: getattr(options, name) for name in names}
    return Batches(options.batch_size, remote=remote(vars(options)), lr_scale=options.lr_scale or "none", **found)


def remote(options: Mapping[str, Any]) -> str | HEC:
    """Return what happens at a neighbour of another rank, as `NeighborLoader` takes it.

    Raises
    ------
    ConfigError
        What `HEC` refuses.
    """
    if options.get("remote") != "hec":
        return options.get("remote") or "exact"
    return HEC(**{name: value for option, name in HEC_OPTIONS.items() if (value := options.get(option)) is not None})


class Training(NamedTuple):
    """How a model is trained, and how it is judged.

    Attributes
    ----------
    task, loss, metric : str, optional
        Of a `Task`; by default that of the data, and its own.
    schedule : callable
        Factor of the learning rate by epoch.
    weight_decay_on : {"all", "first"}, optional
        All parameters, or those of the first layer; None without a decay.
    mfg : bool
        Compute at each layer only rows that reach a labelled one.
    label_inputs : float, optional
        The share of the training rows that show their labels.
    propagated : path, optional
        Folder that keeps propagated features.
    smooth : CorrectAndSmooth, optional
        What is made of the best model's output.
    patience, clip_norm, numerics, eval_every, seed
        As for `Stopping`, `Trainer`, `fit` and `nn.Random`.
    """

    epochs: int = 100
    lr: float = 0.01
    schedule: optim.Factor = optim.constant()
    optimizer: str = "adam"
    weight_decay: float = 0.0
    weight_decay_on: str | None = "all"
    clip_norm: float | None = None
    patience: int | None = None
    eval_every: int = 1
    seed: int = 0
    task: str | None = None
    loss: str | None = None
    metric: str | None = None
    mfg: bool = False
    numerics: str = "fast"
    label_inputs: float | None = None
    propagated: str | None = None
    smooth: CorrectAndSmooth | None = None

    def make_optimizer(self, model: Any, lr: float) -> Callable[[Flat], optim.Optimizer]:
        """Return what makes the optimizer of a model's parameters; raises as `first_layer`."""
        first = first_layer(model) if self.weight_decay_on == "first" else None

        def decay(name: str) -> float:
            return self.weight_decay if first is None or name in first else 0.0

        if self.optimizer == "sgd":
            return lambda flat: optim.SGD(flat, lr, momentum=0.9, weight_decay=decay)
        return lambda flat: optim.Adam(flat, lr, weight_decay=decay, decoupled=self.optimizer == "adamw")


def training_of(options: Any) -> Training:
    """Return how the options say that a model is trained."""
    names = set(Training._fields) - {"schedule", "smooth"}
    found = {name: getattr(options, name) for name in names}
    smooth = smoothing_of(options) if options.correct_and_smooth else None
    return Training(schedule=optim.schedule(options.lr_schedule, options.epochs), smooth=smooth, **found)


def told(options: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that are told of those that `names` has, by the names that it gives them."""
    found = {name: getattr(options, option) for option, name in names.items()}
    return {name: value for name, value in found.items() if value is not None}


def smoothing_of(options: Any) -> CorrectAndSmooth:
    """Return how the options say that outputs are corrected and smoothed."""
    return CorrectAndSmooth(**told(options, SMOOTHING_OPTIONS))


class Output(NamedTuple):
    """What a run leaves and shows.

    Attributes
    ----------
    every_epochs, every_seconds : number, optional
        How often a checkpoint is written beside the last one.
    trace : path, optional
        Timeline of the first `trace_epochs` epochs.
    tensorboard : path, optional
        Folder that gets each epoch's numbers.
    progress : {"auto", "bar", "lines", "none"}
    json : bool
        End standard output with one line of JSON.
    """

    every_epochs: int | None = None
    every_seconds: float | None = None
    trace: str | None = None
    trace_epochs: int = 3
    tensorboard: str | None = None
    progress: str = "none"
    json: bool = False


def output_of(options: Any) -> Output:
    """Return what the options say that a run leaves."""
    every_seconds = seconds(options.checkpoint_every)
    every_epochs = None if every_seconds is not None else int(options.checkpoint_every) or None
    return Output(every_epochs, every_seconds, options.trace, options.trace_epochs or 3, options.tensorboard,
                  options.progress, options.json)
