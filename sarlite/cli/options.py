"""Options of a training run, in one dataclass for each part of a run.

Each option is declared once, as a field. `config` reads the options from the command line and from TOML, and `help`
prints them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sarlite import optim
from sarlite.cli.link_options import LinkOptions
from sarlite.cli.option import HasFields, OptionValue, OptionValues, by_name, fixed_option, from_values, option, options_of
from sarlite.command import byte_size, interval, interval_seconds, words
from sarlite.command import fanouts as picks
from sarlite.graph.correct_and_smooth import CorrectAndSmooth
from sarlite.graph.propagation import NORMALIZATIONS
from sarlite.kernels.native import MAX_THREADS
from sarlite.minibatch.hec.halo_cache import CHOICES, HEC
from sarlite.minibatch.sampler import KINDS
from sarlite.minibatch.seeds import BATCHES
from sarlite.minibatch.temporal import PICKS
from sarlite.nn import Flat, GraphPredictor, Module, Random
from sarlite.nn.decoders import Encoder
from sarlite.nn.readout import READOUTS
from sarlite.numerics import NUMERICS
from sarlite.operators.evaluation import EVALUATIONS
from sarlite.schedule.modes import MODES
from sarlite.schedule.row_format import ROW_FORMATS
from sarlite.tasks.loss_table import ALL_LOSSES
from sarlite.tasks.metric_table import ALL_METRICS
from sarlite.tasks.task_table import TASKS
from sarlite.train.model_loading import ModelSpec, first_layer, model_class
from sarlite.user_code import NamesOrFile


@dataclass(frozen=True)
class DataOptions:
    """Options for the data set and for the parts of it that a run uses."""

    data: str = option("sbm:", "native directory, edges:FILE, tables:FILE.toml, planetoid:PATH/cora, npz:FILE, "
                       "ogb:DIR, sbm:nodes=10000,... or rmat:...; sets of graphs: tu:DIR or ogbg:DIR; relational "
                       "graphs: native directory, mag:DIR or relational:nodes=10000,...", metavar="SPEC", common=True,
                       see="data.md")
    self_loops: bool | None = fixed_option(None, "add the self loops that are missing",
                                           otherwise="gcn, gat, gatv2, gcnii, appnp and sgc yes, others no")
    edge_weights: bool | None = fixed_option(None, "use the data's edge weights", see="#edge-weights-and-edge-features",
                                             otherwise="gcn, gcnii, appnp, sgc and sign yes; other models need the "
                                             "flag if the data have weights")
    edge_features: bool | None = fixed_option(None, "use the data's edge features: in gat's scores, or in the messages "
                                              "of a model of your own", see="#edge-weights-and-edge-features",
                                              otherwise="the flag is needed if the data have edge features")
    normalize_features: bool = fixed_option(False, "scale each node's features to sum 1")
    verify: bool = option(True, "check the data files' sha256 first")


@dataclass(frozen=True)
class ModelOptions:
    """Options of the model. An option that is None takes the default of the model's class."""

    model: str = fixed_option("sage", "gcn, sage, gat, gatv2, gin, gcnii, pna, appnp, sgc, sign; for relational data "
                              "rgcn, rgat; or path/to/file.py:Class", metavar="MODEL", common=True, see="#models")
    layers: int | None = fixed_option(None, "number of layers", least=1, most=10_000, common=True)
    hidden: int | None = fixed_option(None, "hidden features; for gat and gatv2, of each head", least=1, common=True)
    heads: int | None = fixed_option(None, "attention heads", least=1, common=True)
    out_heads: int | None = fixed_option(None, "attention heads of the last layer", least=1)
    out_concat: bool | None = fixed_option(None, "put the last layer's heads side by side, else average the heads")
    dropout: float | None = option(None, "share of dropped features", metavar="SHARE", inside="in [0, 1)", common=True)
    input_dropout: float | None = option(None, "share of dropped input features", metavar="SHARE", inside="in [0, 1)")
    attention_dropout: float | None = option(None, "share of dropped attention coefficients", metavar="SHARE",
                                             inside="in [0, 1)")
    aggregator: str | None = fixed_option(None, "how neighbours are summed up", choices=("mean", "max-pool"))
    gat_form: str | None = fixed_option(None, "for gat: scores from z = W h, or from relu(W h + b) as in DistGNN-MB "
                                        "Eq. 2", argument="form", choices=("standard", "paper"))
    residual: bool | None = fixed_option(None, "residual connections")
    hops: int | None = fixed_option(None, "steps of propagation", least=1, most=10_000, see="#propagation-models")
    teleport: float | None = fixed_option(None, "for appnp and gcnii: weight of a node's own row in each step; the row "
                                          "is the prediction (appnp) or the first hidden row (gcnii)", metavar="SHARE",
                                          inside="in [0, 1)")
    identity_decay: float | None = fixed_option(None, "for gcnii: how fast later layers come near the identity, the "
                                                "paper's lambda", metavar="RATE", least=0.0)
    n_bases: int | None = fixed_option(None, "for rgcn: each relation's weight is a sum over N bases (SAR Eq. 5); "
                                       "without the flag each relation has a weight of its own", least=1)
    embedding: int | None = fixed_option(None, "for rgcn and rgat: width of the learned rows of node types without "
                                         "features; by default the width of the other types' features, or --hidden if "
                                         "no type has features", least=1, see="#relational-graphs")
    learned_rows: list[str] | None = fixed_option(None, "for rgcn and rgat: node types that have learned rows beside "
                                                  "their features, with commas between, or all", metavar="TYPE,TYPE,..",
                                                  read=words, otherwise="only types without features have learned rows",
                                                  see="#relational-graphs")
    relation_weights: str | None = option(None, "for rgcn: multiply by the weight inside the message, or aggregate "
                                          "first; by default the way that costs fewer bytes", argument="evaluation",
                                          choices=EVALUATIONS)
    activation: str | None = fixed_option(None, "activation between layers", choices=("relu", "elu"))
    batch_norm: bool | None = fixed_option(None, "batch norm over all ranks between layers")
    dtype: str = fixed_option("float32", "number type of parameters and activations", choices=("float32", "float64"))

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments for the model's class; options that were not set are left out."""
        return {option.argument or name: value for name, option in options_of(ModelOptions).items()
                if name not in ("model", "dtype") and (value := getattr(self, name)) is not None}

    def spec(self, cls: Callable[..., Module] | None = None) -> ModelSpec:
        """Return the `ModelSpec` of the run: the model's name, its class, keyword arguments and dtype. The class is `cls` or, if
        None, the class that the name stands for.
        """
        return ModelSpec(self.model, cls or model_class(self.model), self.keywords(), self.dtype)


@dataclass(frozen=True)
class TrainingOptions:
    """Options of training and of its evaluation."""

    task: str | None = fixed_option(None, "what the labels must be: one class, several of 0 or 1, or numbers; link: "
                                    "edges are predicted, and labels are ignored", choices=tuple(TASKS), common=True,
                                    otherwise="as the data say", see="#tasks-losses-and-metrics")
    loss: str | None = fixed_option(None, f"loss to minimise: one of {', '.join(ALL_LOSSES)}; focal:GAMMA, by default "
                                    "2, counts rows less that the model already gets right", metavar="LOSS",
                                    otherwise="by task: cross-entropy; bce; squared; bce, with a metric of ranks "
                                    "cross-entropy", see="#rare-classes")
    metric: str | None = fixed_option(None, "metric of each split; the best epoch has the best validation metric. One "
                                      f"of {', '.join(ALL_METRICS)}", metavar="METRIC", common=True,
                                      otherwise="by task: accuracy, with a rare class ap or macro-f1; roc-auc; rmse; "
                                      "roc-auc", see="#rare-classes")
    class_weights: str | dict[int, float] | None = fixed_option(None, "balanced, or CLASS:WEIGHT,...: factors of the loss by class, or of "
                                             "several labels by label where it is 1", metavar="WEIGHTS",
                                             see="#rare-classes")
    positive: str | None = fixed_option(None, "the positive one of two classes, which ap, precision, recall, fbeta and "
                                        "--threshold are about", metavar="CLASS", otherwise="the second class, or a "
                                        "first one that is rare", see="#rare-classes")
    threshold: str = fixed_option("0.5", "probability from which on the positive one of two classes, or a label, is "
                                  "predicted: a number, or chosen on the validation rows by best-f1 or precision=P",
                                  metavar="RULE", see="#rare-classes")
    time_split: str | None = fixed_option(None, "train on rows before time A, validate from A until before B, test from B "
                                          "on: dates such as 2026-03-01, or numbers as the data's times are",
                                          metavar="A,B", otherwise="splits as the data say", see="how-to/time.md")
    epochs: int = option(100, "number of epochs", see="#notes-on-the-options", least=1, common=True)
    lr: float = option(0.01, "learning rate", metavar="RATE", inside="above 0", common=True)
    lr_schedule: str = option("constant", "constant, cosine, step:EVERY:FACTOR, plateau:FACTOR:PATIENCE, or "
                              "warmup:EPOCHS:SCHEDULE", metavar="SCHEDULE", see="#early-stopping")
    clip_norm: float | None = option(None, "largest allowed norm of all gradients together; larger gradients are "
                                     "scaled down", metavar="NORM", inside="above 0")
    patience: int | None = option(None, "end after this many epochs without a better validation metric", metavar="EPOCHS",
                                  least=1, common=True, otherwise="never", see="#early-stopping")
    weight_decay: float = option(0.0, "L2 penalty: RATE / 2 * w^2 joins the loss", metavar="RATE", least=0.0,
                                 common=True, see="#notes-on-the-options")
    weight_decay_on: str = option("all", "all parameters, or the first layer's (Kipf & Welling)",
                                  choices=("all", "first"), needs=("weight_decay",), needs_for="first")
    optimizer: str = fixed_option("adam", "optimizer", choices=("adam", "adamw", "sgd"))
    seed: int = fixed_option(0, "seed of initial parameters, dropout and partition", common=True)
    eval_every: int = option(1, "epochs between evaluations; the last epoch is evaluated in any case", metavar="EPOCHS",
                             least=1, see="#notes-on-the-options")
    mfg: bool = option(False, "message-flow graphs: each layer computes only nodes that reach a labelled node",
                       see="#notes-on-the-options")
    label_inputs: float | None = fixed_option(None, "share of the training nodes whose labels are inputs in an epoch; "
                                              "the loss is the mean over the other training nodes", metavar="SHARE",
                                              inside="above 0 and below 1", see="#labels-as-inputs")
    baseline: bool = option(True, "also print the metric of predictions without edges: a regression on the features, and a "
                                  "constant; for links, popularity", on_resume="forget", see="#what-the-graph-brings")
    numerics: str = fixed_option("fast", "exact: the same bits for any number of ranks and threads, any mode, "
                                 "partition and processor", choices=NUMERICS, see="numerics.md")
    propagated: str | None = option(None, "for sgc and sign: folder that keeps the propagated features for later runs",
                                    metavar="DIR", on_resume="forget")

    def make_optimizer(self, model: Module, lr: float) -> Callable[[Flat], optim.Optimizer]:
        """Return a function from the flattened parameters of `model` to an optimizer for them, with the learning rate `lr`.

        Parameters
        ----------
        model : Module
        lr : float
            Learning rate.

        Raises
        ------
        ConfigError
            Weight decay applies to the first layer alone, and the model does not name its first layer.
        """
        first = first_layer(model) if self.weight_decay and self.weight_decay_on == "first" else None

        def decay(name: str) -> float:
            return self.weight_decay if first is None or name in first else 0.0

        if self.optimizer == "sgd":
            return lambda flat: optim.SGD(flat, lr, momentum=0.9, weight_decay=decay)
        return lambda flat: optim.Adam(flat, lr, weight_decay=decay, decoupled=self.optimizer == "adamw")


@dataclass(frozen=True)
class ReadoutOptions:
    """Options of the readout, which combines the rows of a graph's nodes into one row, for sets of graphs."""

    readout: str = fixed_option("sum", "how the rows of a graph's nodes become the graph's row", choices=READOUTS,
                                recorded=False)
    readout_width: int = fixed_option(64, "width of a node's row that the model makes and the readout takes", least=1,
                                      recorded=False)

    def read_out(self, encoder: Encoder, n_out: int, rng: Random, dtype: str) -> GraphPredictor:
        """Return a model that predicts `n_out` numbers for each graph: `encoder`, which computes a row for each node, and then the
        readout. `rng` draws the readout's parameters.
        """
        return GraphPredictor(encoder, self.readout_width, n_out, self.readout, rng=rng, dtype=np.dtype(dtype))


_SMOOTHING = {"needs": ("correct_and_smooth",)}


@dataclass(frozen=True)
class SmoothingOptions:
    """Options of Correct and Smooth (Huang et al.), which is applied to the best model's output."""

    correct_and_smooth: bool = option(False, "after training, correct and smooth the best model's output (Huang et "
                                      "al.)", see="#correct-and-smooth")
    correct_alpha: float = option(CorrectAndSmooth.correct_alpha, "share of neighbours in an iteration over errors",
                                  metavar="SHARE", **_SMOOTHING)
    correct_iterations: int = option(CorrectAndSmooth.correct_iterations, "iterations over errors; 0 does not correct",
                                     **_SMOOTHING)
    correct_normalization: str = option(CorrectAndSmooth.correct_normalization, "normalise A as D^-1/2 A D^-1/2, D^-1 "
                                        "A or A D^-1", choices=NORMALIZATIONS, **_SMOOTHING)
    correct_scale: float | None = option(None, "factor of the spread errors", metavar="FACTOR",
                                         otherwise="automatic, by row", argument="scale", **_SMOOTHING)
    smooth_alpha: float = option(CorrectAndSmooth.smooth_alpha, "share of neighbours in an iteration over scores",
                                 metavar="SHARE", **_SMOOTHING)
    smooth_iterations: int = option(CorrectAndSmooth.smooth_iterations, "iterations over scores; 0 does not smooth",
                                    **_SMOOTHING)
    smooth_normalization: str = option(CorrectAndSmooth.smooth_normalization, "as --correct-normalization",
                                       choices=NORMALIZATIONS, **_SMOOTHING)

    def smoother(self) -> CorrectAndSmooth | None:
        """Return the `CorrectAndSmooth` with these options; None without --correct-and-smooth."""
        if not self.correct_and_smooth:
            return None
        return CorrectAndSmooth(self.correct_alpha, self.correct_iterations, self.correct_normalization,
                                self.correct_scale, self.smooth_alpha, self.smooth_iterations,
                                self.smooth_normalization)


_BATCHES = {"needs": ("batch_size",)}
_CACHE = {"needs": ("batch_size", "remote hec")}


@dataclass(frozen=True)
class MinibatchOptions:
    """Options of sampled minibatches, and of the historical embedding cache (HEC) of DistGNN-MB."""

    batch_size: int = option(0, "seeds of all ranks in a step; 0 trains full-batch", metavar="SEEDS", least=0,
                             common=True, see="#minibatches")
    fanouts: list[int] | None = option(None, "number of in-edges picked for a row, one number for each layer, the first "
                                             "layer first; all takes all in-edges", metavar="K,K,..", read=picks, common=True, **_BATCHES)
    sampler: str = option("uniform", "how in-edges are picked", choices=KINDS, **_BATCHES)
    temporal: str | None = fixed_option(None, "a seed sees only edges and nodes that are not later than the seed: uniform "
                                        "picks any of them, latest the latest", choices=PICKS,
                                        otherwise="time does not matter", see="how-to/time.md")
    edge_recency: bool = fixed_option(False, "one more edge feature: log(1 + days from the edge to the seed), of times that are "
                                      "whole numbers log(1 + difference)", needs=("temporal",),
                                      argument="recency", see="how-to/time.md")
    sample_ahead: int = option(1, "batches that a thread samples ahead", least=0, **_BATCHES)
    batches: str | None = option(None, "global: cut one order of all training nodes into steps; balanced: cut each "
                                 "rank's own training nodes into even parts", choices=tuple(BATCHES), **_BATCHES,
                                 otherwise="global on one rank and for --remote exact, else balanced")
    remote: str = option("exact", "treatment of neighbours on other ranks: exact, the owner computes the neighbour's row; "
                                  "hec, the row is taken from a cache; local, the edge is left out",
                         choices=("exact", "hec", "local"), common=True, **_BATCHES)
    hec_lines: int = option(HEC.lines, "rows that each layer's cache holds", metavar="ROWS", least=1, **_CACHE)
    hec_life: int = option(HEC.life, "steps for which a row is used after its arrival", metavar="STEPS", least=0,
                           **_CACHE)
    hec_limit: int = option(HEC.limit, "most rows pushed to a peer for a layer in a step", metavar="ROWS", least=1,
                            **_CACHE)
    hec_delay: int = option(HEC.delay, "steps from the push of a row to its arrival at the peers; 0 exchanges rows "
                            "within the step", metavar="STEPS", least=0, **_CACHE)
    on_miss: str = option(HEC.on_miss, "if the cache lacks a row: drop the row's edge, use zeros, or pick other in-edges",
                          choices=CHOICES["on_miss"], **_CACHE)
    push: str = option(HEC.push, "rows to push: paper, the rows that the batch computed; demand, the rows that peers will "
                                 "request", choices=CHOICES["push"], **_CACHE)
    push_by: str = option(HEC.push_by, "order of the rows to push if there are more than --hec-limit",
                          choices=CHOICES["push_by"], **_CACHE)
    halo_features: str = option(HEC.features, "features of remote rows: keep, fetch all once before training; cache; "
                                "auto: keep if they fit", choices=CHOICES["features"], **_CACHE)
    lr_scale: str = option("none", "multiply the learning rate by a function of the number of ranks",
                           choices=("none", "sqrt", "linear"), **_BATCHES)
    eval_fanouts: list[int] | None = option(None, "evaluate on sampled in-edges", metavar="K,K,..", read=picks,
                                            otherwise="exactly, on the full graph", **_BATCHES)

    def at_remote(self) -> str | HEC:
        """Return the argument `remote` of `NeighborLoader`, which says how rows of other ranks are computed: "exact", "local", or
        the settings of the embedding cache (HEC).

        Raises
        ------
        ConfigError
            An option of the cache is invalid.
        """
        if self.remote != "hec":
            return self.remote
        return HEC(self.hec_lines, self.hec_life, self.hec_limit, self.hec_delay, self.on_miss, self.push,
                   self.push_by, self.halo_features)


@dataclass(frozen=True)
class PartitionOptions:
    """Options for dividing the nodes among ranks, and for the order of a rank's nodes."""

    partition: str = option("stored", "metis, fennel (less memory), random, contiguous, or a file with the part of "
                            "each node; stored: the division of the data if there is one, else metis", metavar="METHOD",
                            common=True)
    order: str = option("stored", "order of a part's nodes in memory: as stored with the data, none (by id), or nodes "
                        "that share neighbours together, by metis or by cluster (label propagation, less memory)",
                        choices=("stored", "none", "metis", "cluster"))
    balance: str = option("auto", "counts that METIS or Fennel balances: some of nodes,edges,train; auto: as stored, else "
                                  "nodes and train, and edges if the degrees are skewed", metavar="WHAT")


@dataclass(frozen=True)
class ScheduleOptions:
    """Options for how a rank receives other ranks' rows: the order, and how many at once."""

    mode: str = option("sar", "order in which remote rows are fetched and used, see docs/which-mode.md; or "
                              "path/to/file.py:Class", choices=NamesOrFile(MODES), common=True, see="which-mode.md")
    backward: str | None = option(None, "push gradients to the rows' owners, or let the owners fetch the gradients of "
                                  "their rows' destinations", choices=("push", "fetch"), see="#modes",
                                  otherwise="push; for GCN and GraphSAGE in mode broadcast, with narrow --rows and with "
                                  "exact numerics fetch")
    prefetch: int | None = option(None, "number of peers whose rows a thread fetches ahead", metavar="PEERS", least=0,
                                  see="#notes-on-the-options", otherwise="1 between hosts or if each rank has a core "
                                  "to spare, else 0")
    peers_at_once: int | None = option(None, "number of peers whose rows are fetched and used at once; a larger number "
                                             "saves waiting on many ranks, and takes memory", metavar="PEERS", least=1, see="which-mode.md",
                                       otherwise="1; all in mode oneshot")
    rows: str = fixed_option("float32", "number type of the rows that edges gather, in memory and in messages; sums and "
                                        "all other numbers stay float32", choices=tuple(ROW_FORMATS), see="narrow.md")


@dataclass(frozen=True)
class MachineOptions:
    """Options for the ranks of a run and for the resources they may use."""

    ranks: int = option(1, "ranks as threads of this process, without MPI", least=1, most=1024, common=True)
    threads: int = option(0, "threads of each rank; 0 takes OMP_NUM_THREADS, or else divides the host's "
                          "cores among its ranks", least=0, most=MAX_THREADS, common=True)
    memory_limit: int | None = option(None, "memory of each rank, such as 2GiB; the run ends before or in its first "
                                      "step if it needs more", metavar="SIZE", read=byte_size, least=1, common=True,
                                      on_resume="forget", see="cost.md", otherwise="the share of the machine or "
                                      "container")
    dry_run: bool = option(False, "load the data, take two steps and one evaluation, print memory, bytes and time, and "
                           "write nothing", common=True, on_resume="forget", see="cost.md")
    stall_timeout: float = option(300.0, "end the run after this many seconds without progress on any rank; 0: never",
                                  metavar="SECONDS", least=0.0)


@dataclass(frozen=True)
class OutputOptions:
    """Options for a run's configuration file, its output files and its display."""

    config: str | None = option(None, "TOML file with these options", metavar="FILE.toml", common=True,
                                on_resume="forget")
    run_dir: str | None = option(None, "folder for the run's files", metavar="DIR", common=True, on_resume="forget",
                                 otherwise="runs/TIME-MODEL")
    checkpoint_every: int | str = option("10min", "epochs, or time such as 90s, 10min or 2h, between checkpoints; 0 writes a "
                                   "checkpoint only at the end", metavar="EPOCHS|TIME", read=interval)
    resume: str | None = option(None, "folder or checkpoint of the run to continue, from which data, model and all other "
                                      "options are taken; give only what changes", metavar="RUN", common=True,
                                on_resume="forget", see="#checkpoints-and-resuming")
    keep: int = option(0, "number of earlier checkpoints to keep, evenly spaced over the epochs; sarlite-verify recomputes "
                          "the epochs between two of them", metavar="N", least=0, see="how-to/verify.md")
    stop_after: int | None = option(None, "end after this epoch, with a checkpoint; schedules still follow --epochs",
                                    metavar="EPOCH", least=1, on_resume="forget")
    json: bool = option(False, "end standard output with one line of JSON")
    trace: str | None = option(None, "write a timeline of every rank, which ui.perfetto.dev opens", metavar="FILE.json",
                               on_resume="forget")
    trace_epochs: int = option(3, "number of epochs that --trace records, from the first on", metavar="EPOCHS", least=1,
                               needs=("trace",), on_resume="forget")
    tensorboard: str | None = option(None, "folder for each epoch's numbers, for TensorBoard", metavar="DIR",
                                     on_resume="forget")
    progress: str = option("auto", "bar, or a line every few seconds; auto: bar on a terminal and in a notebook",
                           choices=("auto", "bar", "lines", "none"))

    @property
    def every_seconds(self) -> float | None:
        """Seconds between checkpoints; None if the interval is a number of epochs."""
        return interval_seconds(self.checkpoint_every)

    @property
    def every_epochs(self) -> int | None:
        """Epochs between checkpoints; None if the interval is a time, or if only the end writes a checkpoint."""
        return None if self.every_seconds is not None else int(self.checkpoint_every) or None


SECTIONS: dict[str, type[HasFields]] = {
    "data": DataOptions, "model": ModelOptions, "training": TrainingOptions, "links": LinkOptions,
    "graphs": ReadoutOptions, "smoothing": SmoothingOptions, "minibatch": MinibatchOptions,
    "partition": PartitionOptions, "schedule": ScheduleOptions, "machine": MachineOptions, "output": OutputOptions,
}  # fmt: skip
"""Dataclasses of options by field of `RunOptions`."""
OPTIONS = by_name([*SECTIONS.values()])
"""All options by name. No two sections have an option of the same name."""
ARGUMENTS = {option.argument: name for name, option in OPTIONS.items() if option.argument and option.argument not in OPTIONS}
"""Names of options, keyed by the Python argument that the option sets, where the two names differ."""


@dataclass(frozen=True)
class RunOptions:
    """All options of a training run.

    Attributes
    ----------
    data, model, training, links, graphs, smoothing, minibatch, partition, schedule, machine, output
        Options of each part of the run, with defaults for options that nobody gave.
    values : dict of str to OptionValue
        Value of each option by name; None if nobody gave the option and its default depends on other options.
    """

    data: DataOptions
    model: ModelOptions
    training: TrainingOptions
    links: LinkOptions
    graphs: ReadoutOptions
    smoothing: SmoothingOptions
    minibatch: MinibatchOptions
    partition: PartitionOptions
    schedule: ScheduleOptions
    machine: MachineOptions
    output: OutputOptions
    values: OptionValues

    @classmethod
    def of(cls, values: OptionValues) -> "RunOptions":
        """Return the options with `values`, {name of an option: value}; a missing option has its default."""
        sections: dict[str, Any] = {name: from_values(section, values) for name, section in SECTIONS.items()}
        return cls(**sections, values=dict(values))

    def replace(self, **values: OptionValue) -> "RunOptions":
        """Return a copy of these options with new values for some options: the keywords `values`, named like the options."""
        return RunOptions.of({**self.values, **values})
