"""Table of option pairs, and of pairs of an option and a kind of run, that are refused together."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, NamedTuple

from sarlite.cli.option import OptionValues, options_of
from sarlite.cli.options import OPTIONS, MinibatchOptions, ReadoutOptions
from sarlite.command import flag
from sarlite.errors import ConfigError
from sarlite.schedule.row_format import ROW_FORMATS

SAMPLING = [name for name in options_of(MinibatchOptions) if name not in ("batch_size", "batches", "lr_scale")]
"""Minibatch options that only a run which samples edges uses."""
HIDDEN = ("hidden", "heads", "batch_norm", "activation", "dropout")
"""Options of what stands between layers. A model's class lists the options that it has in `hidden_options`."""
NARROW = [f"rows {each.name}" for each in ROW_FORMATS.values() if each.is_narrow]
"""Values of --rows that round the exchanged rows."""
REFUSED: list[tuple[str, str, str]] = [
    # (an option, or "option value"; another one, or a kind of run in `KINDS`; message of the error)
    ("mfg", "batch_size",
     "{option} applies to full-batch training: minibatches, of {other}, always compute only the rows that their seeds need"),
    *(("backward fetch", other, "{option} does not go with {other}: parts of the graph have no reversed edges")
      for other in ("batch_size", "mfg")),
    ("temporal", "remote hec", "{option} {temporal} does not go with {other}: a cache holds rows that were computed for "
     "other times, maybe later ones: --remote exact or local"),
    ("temporal", "sampler labor", "{option} {temporal} does not go with {other}, which ignores times: --sampler uniform"),
    ("temporal latest", "sampler replace", "{option} does not go with {other}: the latest edges are taken, not drawn"),
    *(("temporal", other, "{option} {temporal} does not go with {other}: its rows have no time")
      for other in ("label_inputs", "correct_and_smooth")),
    ("link_split", "time_split", "{option} and --time-split: one of them says each link's split"),
    ("label_inputs", "batches of a cache",
     "{option} does not go with --remote hec: cached rows were computed from labels that a later step hides"),
    ("eval_fanouts", "other layers", "{option} has {n_eval_fanouts} entries, but --fanouts {n_fanouts}"),
    ("model", "relational model, plain data",
     "{option} {model}: takes relational graphs, but --data {data} has one kind of nodes and edges"),
    ("model", "plain model, relational data",
     "{option} {model}: takes graphs with one kind of nodes and edges, but --data {data} is relational: --model rgcn or "
     "rgat takes relational graphs"),
    *((option, "relational data", "{option}: does not go with relational graphs, such as --data {data}") for option in (
        "label_inputs", "correct_and_smooth", "propagated", "self_loops", "normalize_features")),
    ("remote hec", "relational data", "{option}: relational graphs, such as --data {data}, have no cache: --remote exact or "
     "local"),
    ("batch_size", "sampled rows without fan-outs",
     "{option} needs --fanouts: the number of in-edges sampled per node, for each layer"),
    *((option, "model of propagated rows",
       "{option}: the model {model} uses no neighbours in training, so nothing is sampled")
      for option in SAMPLING),
    ("weight_decay_on first", "model without a first layer",
     "{option}: the model {model} has no method first_layer, which names its first layer"),
    *((option, f"one layer, {option}",
       "{option}: applies between layers, so it has no effect on --model {model} with --layers 1")
      for option in HIDDEN),
    ("edge_features", "model without edge features", "{option}: the model {model} takes no edge features"),
    ("edge_weights", "largest of neighbours", "{option}: aggregator max-pool takes no edge weights, --aggregator mean does"),
    ("label_inputs", "propagated rows",
     "{option} {label_inputs}: the model {model} trains on features that were propagated before"),
    ("propagated", "nothing propagated", "{option} {propagated}: the model {model} propagates nothing before training"),
    ("fanouts", "propagated rows",
     "--model {model}: its class must have an attribute powers to train on minibatches of propagated features"),
    *(("numerics exact", other, "{option} does not go with {other}: its steps depend on the number of ranks")
      for other in ("remote hec", "remote local", "batches balanced", "lr_scale sqrt", "lr_scale linear")),
    ("numerics exact", "relation_weights inside",
     "{option} does not go with {other}: gradients of the weights would be sums of parts that each rank rounds"),
    ("numerics exact", "learned rows of several relations",
     "{option} does not go with --decoder {decoder} and --link-relation {link_relation}: gradients of a decoder's "
     "rows, one per relation, are not exact yet; --decoder dot has no such rows"),
    *((rows, other, "{option} does not go with {other}, whose rows are float32") for rows in NARROW for other in (
        "correct_and_smooth", "edge_features", "numerics exact", "dtype float64")),
    *((rows, "propagated rows", "{option}: the propagated features of --model {model} are float32") for rows in NARROW),
    *((rows, "batches of a cache", "{option} does not go with --remote hec: its rows are float32 or bfloat16")
      for rows in NARROW if rows != "rows bfloat16"),
    ("edge_labels", "task link",
     "{option} {edge_labels}: labels of edges are predicted, but --task link predicts edges: --task classify, "
     "multilabel or regress"),
    *((option, other, "{option} does not go with {other}: the ends of a link may belong to two other ranks, which must compute their rows")
      for option in ("task link", "edge_labels") for other in ("remote hec", "remote local")),
    *((option, other, "{option} does not go with {other}: not supported for links yet")
      for option in ("task link", "edge_labels") for other in (
        "eval_fanouts", "mfg", "label_inputs", "correct_and_smooth")),
    ("link_relation", "plain data",
     "{option} {link_relation}: --data {data} has one kind of edges, which is the only relation"),
    *((option, "class of propagated rows",
       "{option}: the model {model} trains on features that were propagated before, over all edges")
      for option in ("task link", "edge_labels")),
    ("edge_labels", "file of links",
     "{option}: a column of its table, split=COLUMN, names the rows for validation and test, so --link-val and "
     "--link-test must be shares or left out"),
    ("link_split", "file of links",
     "{option} names the links for validation and test, so --link-val and --link-test must be shares or left out"),
    ("task link", "file of links, and a share",
     "--link-val {link_val} and --link-test {link_test}: give two files or two shares; beside a file, 0 or no "
     "flag means no links"),
    *((option, "shares beside words",
       "{option} with split=COLUMN sets the split of each link, so --link-val and --link-test have no effect")
      for option in ("link_split", "edge_labels")),
    *((option, "no set of graphs", "{option}: applies to sets of graphs, but --data {data} is none, or the model {model} is relational")
      for option in options_of(ReadoutOptions)),
    *((option, "a set of graphs", "{option}: not supported yet for sets of graphs, such as --data {data}")
      for option in (
        "task link", "edge_labels", "mfg", *NARROW, "label_inputs", "correct_and_smooth",
        "normalize_features", "embeddings", "propagated", "time_split")),
    *((option, "a set of graphs", "{option}: batches of --data {data} are whole graphs, so nothing is sampled")
      for option in SAMPLING),
    ("model", "a set of graphs and propagated rows",
     "{option} {model}: trains on propagated features, but --data {data} is a set of graphs"),
    *((option, "other task than classify", "{option}: applies to classes, but the task is {task}")
      for option in ("label_inputs", "correct_and_smooth")),
    ("edge_recency", "model without edge features", "{option}: the model {model} takes no edge features: --model gat does"),
    ("temporal", "model of whole degrees", "{option} {temporal}: the model {model} divides by degrees of the whole graph, "
     "which count later edges: choose --model sage, gat or gin, or for relational data rgcn or rgat"),
]


class Run(NamedTuple):
    """Facts about a run that decide which options go together. A fact that is not known yet is None, and rules about it do not apply.

    Attributes
    ----------
    options : dict of str to OptionValue
        Values of the options by name.
    cls : type, optional
        Class of the model.
    relational : bool, optional
        True if the data are a relational graph, or a set of graphs that a relational model takes.
    model : Module, optional
    task : str, optional
        Name of the task.
    graphs : bool, optional
        True if the data are a set of graphs.
    """

    options: OptionValues
    cls: Callable[..., object] | None = None
    relational: bool | None = None
    model: object = None
    task: str | None = None
    graphs: bool | None = None

    @classmethod
    def of(cls, options: OptionValues, model: Callable[..., object] | None, kind: str) -> "Run":
        """Return the facts about a run that are known before its data are read: its options, the class `model` of its model (None:
        unknown), and the `kind` of its data, such as "plain".

        Parameters
        ----------
        options : dict of str to OptionValue
        model : type or None
            Class of the model. A relational model takes a set of graphs as one relational graph.
        kind : str
            Kind of the data, as `load.kind` returns it.
        """
        graphs = kind == "graphs" and not getattr(model, "relational", False)
        return cls(options, model, kind != "plain" and not graphs, graphs=graphs)

    def has(self, what: str) -> bool:
        """Return True if `what` holds for the run: an option that is set, such as "mfg", an option with a value, such as "remote
        hec", or a fact named in `KINDS`.
        """
        if what in KINDS:
            return bool(KINDS[what](self))
        name, _, value = what.partition(" ")
        option = self.options.get(name)
        return str(option) == value if value else not (option is None or option is False or option == _OFF.get(name))


_OFF = {"batch_size": 0, "weight_decay": 0, "dropout": 0}
"""Values, beside None and False, with which an option has no effect."""


def _has_no_effect(option: str) -> Callable[[Run], bool]:
    """Return a function run -> bool that is True if the run's model has one layer and therefore ignores `option`."""
    return lambda run: run.options.get("layers") == 1 and option in getattr(run.cls, "hidden_options", ())


KINDS: dict[str, Callable[[Run], object]] = {
    "model of whole degrees": lambda run: run.options.get("model") in ("gcn", "gcnii", "appnp"),
    "relational data": lambda run: run.relational,
    "plain data": lambda run: run.relational is False,
    "a set of graphs": lambda run: run.graphs,
    "no set of graphs": lambda run: run.graphs is False,
    "relational model, plain data": lambda run: run.relational is False and getattr(run.cls, "relational", False),
    "plain model, relational data": lambda run: (
        run.cls and run.relational and not getattr(run.cls, "relational", False)),
    "model of propagated rows": lambda run: hasattr(run.cls, "powers") and run.has("batch_size"),
    "sampled rows without fan-outs": lambda run: (
        run.cls and not hasattr(run.cls, "powers") and not run.has("fanouts") and not run.graphs),
    "model without edge features": lambda run: (
        run.cls and ".py:" not in run.options["model"] and "edge_features" not in signature(run.cls).parameters),
    **{f"one layer, {option}": _has_no_effect(option) for option in HIDDEN},
    "model without a first layer": lambda run: run.cls and not hasattr(run.cls, "first_layer"),
    "largest of neighbours": lambda run: run.has("model sage") and run.has("aggregator max-pool"),
    "class of propagated rows": lambda run: hasattr(run.cls, "powers"),
    "a set of graphs and propagated rows": lambda run: run.graphs and hasattr(run.cls, "powers"),
    "propagated rows": lambda run: hasattr(run.model, "powers"),
    "nothing propagated": lambda run: run.model is not None and not hasattr(run.model, "powers"),
    "other task than classify": lambda run: run.task not in (None, "classify"),
    "file of links": lambda run: any(isinstance(run.options.get(name), str) for name in ("link_val", "link_test")),
    "file of links, and a share": lambda run: {str, float} == {
        type(value) for name in ("link_val", "link_test") if (value := run.options.get(name))},
    "shares beside words": lambda run: (
        any(run.options.get(name) is not None for name in ("link_val", "link_test"))
        and any(word.startswith("split=") for name in ("link_split", "edge_labels")
                for word in (run.options.get(name) or "").split(","))),
    "task link or --edge-labels": lambda run: run.has("task link") or run.has("edge_labels"),
    "learned rows of several relations": lambda run: (
        run.options.get("decoder") not in (None, "dot")
        and ((named := run.options.get("link_relation") or "") == "all" or "," in named)),
    "batches of a cache": lambda run: run.has("batch_size") and run.has("remote hec"),
    "other layers": lambda run: (
        run.has("fanouts") and len(run.options["fanouts"]) != len(run.options["eval_fanouts"] or ())),
}


def refuse(run: Run) -> None:
    """Raise a ConfigError if both facts of a pair in the table `REFUSED` hold for `run`."""
    for option, other, message in REFUSED:
        if run.has(option) and run.has(other):
            raise ConfigError(message.format(**_words(run), option=flag(option), other=flag(other)))


def only_needed(options: OptionValues, sources: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of `options` with None for each option that needs another option which is unset, because it has no effect then. Raise a
    ConfigError if the user set such an option; `sources` maps each option that the user set to its name in the message, such as
    "--hec-life".

    Parameters
    ----------
    options : dict of str to OptionValue
        Values of all options by name.
    sources : dict of str to str
        Source of each option that the user set for this run, such as "--hec-life", for error messages.

    Raises
    ------
    ConfigError
        The user set an option that has no effect.
    """
    values = dict(options)
    for name, option in OPTIONS.items():
        missing = next((needed for needed in option.needs if not Run(values).has(needed)), None)
        if missing is None or option.needs_for not in (None, values[name]):
            continue
        if name in sources and values[name] is not None:
            value = f" {option.needs_for}" if option.needs_for else ""
            raise ConfigError(f"{sources[name]}{value} has no effect without {flag(missing)}")
        values[name] = None
    return values


def _words(run: Run) -> dict[str, object]:
    """Return {placeholder: value} for the error messages of `REFUSED`: the options of `run`, the lengths of its lists of fan-outs,
    and its task.
    """
    lengths = {f"n_{name}": len(run.options.get(name) or ()) for name in ("fanouts", "eval_fanouts")}
    return {**run.options, **lengths, "task": run.task}
