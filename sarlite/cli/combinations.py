"""The table of options, and of options and kinds of run, that are refused together."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, NamedTuple

from sarlite.cli.option import options_of
from sarlite.cli.options import OPTIONS, MinibatchOptions, ReadoutOptions
from sarlite.command import flag
from sarlite.errors import ConfigError
from sarlite.schedule.row_format import ROW_FORMATS

SAMPLING = [name for name in options_of(MinibatchOptions) if name not in ("batch_size", "batches", "lr_scale")]
"""Options of minibatches that only a run which samples edges has."""
HIDDEN = ("hidden", "heads", "batch_norm", "activation", "dropout")
"""Options that stand between a model's layers; `hidden_options` of its class says which of them."""
NARROW = [f"rows {each.name}" for each in ROW_FORMATS.values() if each.is_narrow]
"""Options of rows that are rounded."""
REFUSED: list[tuple[str, str, str]] = [
    # an option, or "option value"; another one, or a kind of run in `KINDS`; what the error says
    ("mfg", "batch_size",
     "{option} is of full-batch training: minibatches, of {other}, compute only what reaches their seeds anyway"),
    *(("backward fetch", other, "{option} does not go with {other}: parts of the graph have no reversed edges")
      for other in ("batch_size", "mfg")),
    ("temporal", "remote hec", "{option} {temporal} does not go with {other}: a cache keeps rows that were computed at "
     "other times, maybe later ones: --remote exact or local"),
    ("temporal", "sampler labor", "{option} {temporal} does not go with {other}, which draws otherwise: --sampler uniform"),
    ("temporal latest", "sampler replace", "{option} does not go with {other}: the latest edges are not drawn"),
    *(("temporal", other, "{option} {temporal} does not go with {other}: its rows have no time")
      for other in ("label_inputs", "correct_and_smooth")),
    ("link_split", "time_split", "{option} and --time-split: one of them says each link's split"),
    ("label_inputs", "batches of a cache",
     "{option} does not go with --remote hec: its rows were made when labels that a step hides were shown"),
    ("eval_fanouts", "other layers", "{option} has {n_eval_fanouts} entries, but --fanouts {n_fanouts}"),
    ("model", "relational model, plain data",
     "{option} {model}: takes relational graphs, but --data {data} is of one kind"),
    ("model", "plain model, relational data",
     "{option} {model}: takes graphs of one kind, but --data {data} is relational: --model rgcn or rgat takes it"),
    *((option, "relational data", "{option}: does not go with relational graphs, as --data {data} is") for option in (
        "label_inputs", "correct_and_smooth", "propagated", "self_loops", "normalize_features")),
    ("remote hec", "relational data", "{option}: relational graphs, as --data {data} is, have no cache of each type's "
     "rows: --remote exact or local"),
    ("batch_size", "sampled rows without fan-outs",
     "{option} needs --fanouts: the in-edges picked a row, one number a layer"),
    *((option, "model of propagated rows",
       "{option}: the model {model} needs no neighbours in training, so nothing is sampled")
      for option in SAMPLING),
    ("weight_decay_on first", "model without a first layer",
     "{option}: the model {model} does not say which layer is its first, as by a method first_layer"),
    *((option, f"one layer, {option}",
       "{option}: stands between layers, so it means nothing for --model {model} with --layers 1")
      for option in HIDDEN),
    ("edge_features", "model without edge features", "{option}: the model {model} takes no edge features"),
    ("edge_weights", "largest of neighbours", "{option}: aggregator max-pool takes none, --aggregator mean does"),
    ("label_inputs", "propagated rows",
     "{option} {label_inputs}: the model {model} trains on features that were propagated before"),
    ("propagated", "nothing propagated", "{option} {propagated}: the model {model} propagates nothing before training"),
    ("fanouts", "propagated rows",
     "--model {model}: for minibatches of propagated features its class must have an attribute powers"),
    *(("numerics exact", other, "{option} does not go with {other}: its steps differ on other numbers of ranks")
      for other in ("remote hec", "remote local", "batches balanced", "lr_scale sqrt", "lr_scale linear")),
    ("numerics exact", "relation_weights inside",
     "{option} does not go with {other}: the weights' gradients would be sums of each rank's rounded parts"),
    ("numerics exact", "learned rows of several relations",
     "{option} does not go with --decoder {decoder} and --link-relation {link_relation}: gradients of a row that each "
     "relation has are not exact yet; --decoder dot has none"),
    *((rows, other, "{option} does not go with {other}, whose rows are float32") for rows in NARROW for other in (
        "correct_and_smooth", "edge_features", "numerics exact", "dtype float64")),
    *((rows, "propagated rows", "{option}: propagated features, as of --model {model}, are float32") for rows in NARROW),
    *((rows, "batches of a cache", "{option} does not go with --remote hec: its rows are float32 or bfloat16")
      for rows in NARROW if rows != "rows bfloat16"),
    ("edge_labels", "task link",
     "{option} {edge_labels}: labels of edges are predicted, but --task link predicts edges: --task classify, "
     "multilabel or regress"),
    *((option, other, "{option} does not go with {other}: a link's ends may be of any two ranks, which compute them")
      for option in ("task link", "edge_labels") for other in ("remote hec", "remote local")),
    *((option, other, "{option} does not go with {other}: of links it is not done yet")
      for option in ("task link", "edge_labels") for other in (
        "eval_fanouts", "mfg", "label_inputs", "correct_and_smooth")),
    ("link_relation", "plain data",
     "{option} {link_relation}: --data {data} is of one kind, whose edges are one relation"),
    *((option, "class of propagated rows",
       "{option}: the model {model} trains on features that were propagated before, over all edges")
      for option in ("task link", "edge_labels")),
    ("edge_labels", "file of links",
     "{option}: a column of its table says which rows are to validate and to test on, as split=COLUMN, so --link-val "
     "and --link-test are shares, or are not given"),
    ("link_split", "file of links",
     "{option} says which edges are links to validate and to test on, so --link-val and --link-test are shares, or are "
     "not given"),
    ("task link", "file of links, and a share",
     "--link-val {link_val} and --link-test {link_test}: both are files, or both shares; beside a file 0, or nothing, "
     "is no link"),
    *((option, "shares beside words",
       "{option} with split=COLUMN says each link's split: --link-val and --link-test mean nothing")
      for option in ("link_split", "edge_labels")),
    *((option, "no set of graphs", "{option}: --data {data} is no set of graphs, or the model {model} relational")
      for option in options_of(ReadoutOptions)),
    *((option, "a set of graphs", "{option}: of sets of graphs, as --data {data} is, it is not done yet")
      for option in (
        "task link", "edge_labels", "mfg", *NARROW, "label_inputs", "correct_and_smooth",
        "normalize_features", "embeddings", "propagated", "time_split")),
    *((option, "a set of graphs", "{option}: batches of --data {data} are whole graphs, so nothing is sampled")
      for option in SAMPLING),
    ("model", "a set of graphs and propagated rows",
     "{option} {model}: trains on features that were propagated before, but --data {data} is a set of graphs"),
    *((option, "other task than classify", "{option}: is of classes, but the task is {task}")
      for option in ("label_inputs", "correct_and_smooth")),
    ("temporal", "model of whole degrees", "{option} {temporal}: the model {model} divides by degrees of the whole graph, "
     "which count later edges: --model sage, gat or gin, or for relational data rgcn or rgat, does not"),
]

class Run(NamedTuple):
    """Facts about a run, filled in stages: the options, then the model's class and the kind of data, then the task."""

    options: Mapping[str, Any]
    cls: Any = None
    relational: bool | None = None
    model: Any = None
    task: str | None = None
    graphs: bool | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], model: Any, kind: str) -> "Run":
        """Return the facts for data of a `load.kind`; a relational model takes sets of graphs as relational."""
        graphs = kind == "graphs" and not getattr(model, "relational", False)
        return cls(options, model, kind != "plain" and not graphs, graphs=graphs)

    def has(self, what: str) -> bool:
        """Return True if the run has an option, written as in `REFUSED`, or is known to be of a kind in `KINDS`."""
        if what in KINDS:
            return bool(KINDS[what](self))
        name, _, value = what.partition(" ")
        found = self.options.get(name)
        return str(found) == value if value else not (found is None or found is False or found == _OFF.get(name))


_OFF = {"batch_size": 0, "weight_decay": 0, "dropout": 0}
"""Values of options that ask for nothing, beside None and False."""


def _means_nothing(option: str) -> Callable[[Run], bool]:
    """Return a function that says whether an option has no effect on a run's model, which has one layer."""
    return lambda run: run.options.get("layers") == 1 and option in getattr(run.cls, "hidden_options", ())


KINDS: dict[str, Callable[[Run], Any]] = {
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
    **{f"one layer, {option}": _means_nothing(option) for option in HIDDEN},
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
    """Raise a ConfigError if the known facts about a run do not go together."""
    for option, other, message in REFUSED:
        if run.has(option) and run.has(other):
            raise ConfigError(message.format(**_words(run), option=flag(option), other=flag(other)))


def only_needed(options: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the options, with None for each option that means nothing without an option that the run lacks.

    Parameters
    ----------
    options : dict
    given : dict
        For each option that was given for this run, the words that gave it.

    Raises
    ------
    ConfigError
        An option that means nothing was given for this run.
    """
    found = dict(options)
    for name, option in OPTIONS.items():
        missing = next((needed for needed in option.needs if not Run(found).has(needed)), None)
        if missing is None or option.needs_for not in (None, found[name]):
            continue
        if name in given and found[name] is not None:
            value = f" {option.needs_for}" if option.needs_for else ""
            raise ConfigError(f"{given[name]}{value} means nothing without {flag(missing)}")
        found[name] = None
    return found


def _words(run):
    """Return the values that a message may name."""
    lengths = {f"n_{name}": len(run.options.get(name) or ()) for name in ("fanouts", "eval_fanouts")}
    return {**run.options, **lengths, "task": run.task}
