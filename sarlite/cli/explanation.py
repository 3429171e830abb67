"""Explanations of predictions: attributions to named features and edges, each on the neighbourhood of one node."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from sarlite import nn
from sarlite.cli.run import new_model
from sarlite.cli.trained_run import TrainedRun
from sarlite.comm import Solo
from sarlite.data.graph_tables import NODE, RELATION
from sarlite.data.part import Rows
from sarlite.data.tables.transforms import Fitted
from sarlite.errors import DataError
from sarlite.graph.hetero import NodeType
from sarlite.tape import Tensor, ops
from sarlite.train.attribution import Inputs, Scorer, integrate_edges, integrate_inputs, occluded
from sarlite.train.load import Shard
from sarlite.train.neighborhood import Neighborhood
from sarlite.types import Array

GRADIENTS, OCCLUSION = METHODS = ("integrated gradients", "occlusion")
FEATURE, COLUMN, EDGE = KINDS = ("feature", "column", "edge")
X = "x "
"""Prefix of the names of the neighbourhood's rows of features, before the node type."""
_TOLERANCES = {8: 1e-9, 4: 2e-4}
"""Largest difference of an output on a neighbourhood, relative to the row's largest entry, by bytes of the dtype."""


class End(NamedTuple):
    """A node at an end of an edge: its type, its id, and the number of hops from the node to the explained node."""

    node_type: str
    id: str
    hops: int


class Attribution(NamedTuple):
    """The share of a feature or an edge in a prediction.

    Attributes
    ----------
    kind : {"feature", "column", "edge"}
        A column is one of several that a transform makes of a feature.
    method : {"integrated gradients", "occlusion"}
    name : str
        Name of the feature or of the column, or the words of the edge's relation joined by ".".
    value : float
        Positive if the feature or edge raises the score.
    ends : tuple of End
        Source and destination of an edge; empty for a feature.
    """

    kind: str
    method: str
    name: str
    value: float
    ends: tuple[End, ...] = ()


class Total(NamedTuple):
    """Check that integrated gradients are complete.

    Attributes
    ----------
    without : float
        Score with all features at the baseline, or without all messages along edges of the data.
    sum : float
        Sum of the integrated gradients, which approximates the score minus `without`.
    """

    without: float
    sum: float


class Explanation(NamedTuple):
    """Why a node has its prediction.

    Attributes
    ----------
    node, label : str
        Id of the node, and name of the class, label or output that is explained.
    score : float
        The number that is explained.
    attributions : list of Attribution
        By kind and method the largest ones, the largest first.
    features, edges : Total
    n_edges, n_occluded : int
        Number of edges of the data that reach the node, and of those that were left out one at a time.
    """

    node: str
    label: str
    score: float
    attributions: list[Attribution]
    features: Total
    edges: Total
    n_edges: int
    n_occluded: int

    def of(self, kind: str, method: str) -> list[Attribution]:
        """Return the attributions of a kind by a method, the largest first."""
        return [own for own in self.attributions if (own.kind, own.method) == (kind, method)]

    def missed(self, total: Total) -> float:
        """Return the sum of the integrated gradients minus the change of the score that they explain."""
        return total.sum - (self.score - total.without)


class Explainer(NamedTuple):
    """Explains predictions of a run's model.

    Attributes
    ----------
    trained : TrainedRun
    part : Shard
        This rank's data.
    model : Module
        The whole model, whose replicated parameters are copied.
    baseline : Inputs
        One row for each node type and each parameter that is owned by rows.
    hops : int
        Number of layers.
    """

    trained: TrainedRun
    part: Shard
    model: Any
    baseline: Inputs
    hops: int

    def explain(self, output: Array, around: Neighborhood) -> Explanation:
        """Explain a node's prediction.

        Parameters
        ----------
        output : (n_outputs,) array
            The model's output for the node on the whole graph.
        around : Neighborhood

        Raises
        ------
        DataError
            The model's output on the neighbourhood is another one.
        """
        label, config = explained_label(self.trained, output), self.trained.config
        node_type = self.part.target if isinstance(self.part.graph, NodeType) else NODE
        (node,) = self._names(node_type, around.node_ids[node_type][[around.place]])
        scorer = self._scorer(around, score_of(config.score, self.trained.form, label))
        self._check(scorer, output, node)
        score = scorer.value()
        features, of_features = self._features(scorer, score)
        edges, of_edges, n_edges, n_occluded = self._edges(scorer, score, around)
        chosen = [own for kind in KINDS for method in METHODS for own in largest(
            [each for each in (*features, *edges) if (each.kind, each.method) == (kind, method)], config.top)]
        return Explanation(node, label_names(self.trained, len(output))[label], score, chosen, of_features, of_edges, n_edges,
                           n_occluded)

    def _names(self, node_type: str, ids: Array) -> list[str]:
        names = self.part.names.get(node_type)
        return [*map(str, ids.tolist())] if names is None else names.of(ids)

    def _scorer(self, around: Neighborhood, score: Callable[[Tensor], Tensor]) -> Scorer:
        """Return the scorer of a node: the model, with the learned rows of its neighbourhood."""
        run, features = self.trained.run, self.part.rows.features
        relational = isinstance(self.part.graph, NodeType)
        raw = features if relational else {NODE: features}
        x = {name: around.rows[X + name] for name in raw}
        kept = {name: rows[:, : raw[name].shape[1]] for name, rows in x.items()}
        none = np.zeros(len(around.node_ids[self.part.target if relational else NODE]), bool)
        rows = Rows(kept if relational else kept[NODE], none.astype(np.int64), none, none, none)
        part = self.part._replace(graph=around.graph, rows=rows, n_classes=self.trained.meta["data"]["classes"])
        model, learned = new_model(Solo(), run, part, nn.Random(run.training.seed)), {}
        for name, parameter in model.named_parameters():
            if parameter.ids is not None:
                ids = around.node_ids[parameter.node_type if relational else NODE]
                learned[name] = around.rows[name][np.searchsorted(ids, parameter.ids)]
        model.load_state_dict({**self.model.state_arrays(), **learned})
        return Scorer(model.eval(), around.graph, Inputs(x, learned), around.place, score)

    def _check(self, scorer: Scorer, output: Array, node: str) -> None:
        """Raise a DataError if the output on the neighbourhood is not that on the whole graph."""
        found = scorer.plain_output()
        if not np.abs(found - output).max() <= _TOLERANCES[output.dtype.itemsize] * max(1.0, np.abs(output).max()):
            at = int(np.argmax(np.abs(found - output)))
            raise DataError(f"node {node}: the model {self.trained.run.model.spec} computes {found[at]:.6g} on the {self.hops} "
                            f"hops around it, but {output[at]:.6g} on the whole graph: its predictions depend on more than the "
                            "rows that reach a node through its layers, as those of pna do on the mean degree of all nodes")

    def _features(self, scorer: Scorer, score: float) -> tuple[list[Attribution], Total]:
        found = integrate_inputs(scorer, self.baseline, self.trained.config.steps)
        by_column = {name: own.sum(0) for name, own in found.x.items()}
        total = Total(scorer.value(scorer.inputs.on_path(self.baseline, 0.0)),
                      float(sum(own.sum() for values in found for own in values.values())))
        attributions = []
        for kind, name, node_type, columns in self._items():
            left = scorer.value(occluded(scorer.inputs, self.baseline, node_type, columns))
            attributions += [Attribution(kind, GRADIENTS, name, float(by_column[node_type][columns].sum())),
                             Attribution(kind, OCCLUSION, name, score - left)]
        for parameter, values in found.learned.items():
            mean = {parameter: np.broadcast_to(self.baseline.learned[parameter], values.shape)}
            left = scorer.value(scorer.inputs._replace(learned={**scorer.inputs.learned, **mean}))
            name = f"learned rows of {dict(self.model.named_parameters())[parameter].node_type or NODE}"
            attributions += [Attribution(FEATURE, GRADIENTS, name, float(values.sum())),
                             Attribution(FEATURE, OCCLUSION, name, score - left)]
        return attributions, total

    def _items(self) -> Iterator[tuple[str, str, str, list[int]]]:
        """Yield the kind, name, node type and columns of each feature, and of each column of several of a feature."""
        labels = label_names(self.trained, self.trained.meta["data"]["classes"])
        for node_type, row in self.baseline.x.items():
            names, origins = column_names(self.part, node_type, row.shape[-1], labels)
            groups: dict[str, list[int]] = {}
            for at, origin in enumerate(origins):
                groups.setdefault(origin, []).append(at)
            for name, columns in groups.items():
                yield FEATURE, name, node_type, columns
                if len(columns) > 1:
                    yield from ((COLUMN, names[at], node_type, [at]) for at in columns)

    def _edges(self, scorer: Scorer, score: float, around: Neighborhood) -> tuple[list[Attribution], Total, int, int]:
        chosen = {relation: own for relation, own in around.removable(self.hops).items() if own.any()}
        if not chosen:
            return [], Total(score, 0.0), 0, 0
        found = integrate_edges(scorer, chosen, self.trained.config.steps)
        without = scorer.gated_value({relation: np.where(own, 0.0, 1.0) for relation, own in chosen.items()})
        edges = [(relation, int(at)) for relation, own in chosen.items() for at in np.flatnonzero(own)]
        edges.sort(key=lambda edge: -abs(found[edge[0]][edge[1]]))
        tried = edges[: self.trained.config.occlude]
        ends = self._ends(around, edges)
        attributions = [Attribution(EDGE, GRADIENTS, _told(relation), float(found[relation][at]), ends[relation, at])
                        for relation, at in edges]
        attributions += [Attribution(EDGE, OCCLUSION, _told(relation), score - scorer.value_without(relation, at),
                                     ends[relation, at]) for relation, at in tried]
        return attributions, Total(without, float(sum(own.sum() for own in found.values()))), len(edges), len(tried)

    def _ends(self, around: Neighborhood, edges: Sequence[tuple[Any, int]]) -> dict[tuple[Any, int], tuple[End, End]]:
        nodes = {name: [End(name, own, hops) for own, hops in zip(self._names(name, ids), around.distances[name].tolist())]
                 for name, ids in around.node_ids.items()}
        return {(relation, at): (nodes[relation[0]][around.ends[relation][0][at]], nodes[relation[2]][around.ends[relation][1][at]])
                for relation, at in edges}


def _told(relation: tuple[str, str, str]) -> str:
    return relation[1] if relation == RELATION else ".".join(relation)


def largest(attributions: Sequence[Attribution], most: int) -> list[Attribution]:
    """Return the attributions with the largest absolute values, the largest first."""
    return sorted(attributions, key=lambda own: -abs(own.value))[:most]


def label_names(trained: TrainedRun, n_outputs: int) -> list[str]:
    """Return the names of the model's outputs: the classes' names, or numbers."""
    return trained.meta.get("class_names") or [*map(str, range(n_outputs))]


def explained_label(trained: TrainedRun, output: Array) -> int:
    """Return the number of the output that is explained: as --label says, or the predicted class."""
    if trained.config.label is not None:
        return label_names(trained, len(output)).index(trained.config.label)
    if trained.form == "regress":
        return 0
    if trained.form == "classify" and trained.decision is not None:
        return int(trained.decision.of(output[None], False)[0])
    return int(output.argmax())


def score_of(kind: str, form: str, label: int) -> Callable[[Tensor], Tensor]:
    """Return the function from a row of outputs, (1, n_outputs), to the score of one of them.

    Parameters
    ----------
    kind : {"log-odds", "probability", "output"}
        The log-odds of a class are log(p / (1 - p)); of a label they are its output. A number is its output always.
    form : {"classify", "multilabel", "regress"}
    label : int
    """
    def score(output: Tensor) -> Tensor:
        if kind == "probability" and form != "regress":
            output = ops.softmax(output, 1) if form == "classify" else ops.sigmoid(output)
        own = output[:, label : label + 1].sum()
        if kind == "log-odds" and form == "classify" and output.shape[1] > 1:
            own = own - ops.concat([output[:, :label], output[:, label + 1 :]], 1).logsumexp()
        return own

    return score


def column_names(part: Shard, node_type: str, width: int, labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of a type's columns of input rows, and for each the name of the feature that it is made of.

    Known labels stand behind the features. Of relational data the names begin with the node type.
    """
    columns, transforms = next(own[1:] for own in part.schema["nodes"] if own[0] == node_type)
    names = [f"feature {at}" for at in range(columns or 0)] if not isinstance(columns, list) else list(columns)
    origins = Fitted.from_json(transforms).origins if transforms else {}
    features = [origins.get(name, name) for name in names]
    known = labels[: width - len(names)]
    names, features = names + [f"known label={label}" for label in known], features + ["known label"] * len(known)
    prefix = f"{node_type}." if isinstance(part.graph, NodeType) else ""
    return [prefix + name for name in names], [prefix + name for name in features]
