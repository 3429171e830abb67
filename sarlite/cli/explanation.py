"""Explanation of a node's prediction: attributions to named features and to edges, computed on its neighbourhood."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sarlite import nn
from sarlite.cli.run import new_model
from sarlite.cli.trained_run import TrainedRun
from sarlite.comm import Solo
from sarlite.data.graph_tables import NODE, RELATION
from sarlite.data.part import OwnedRows
from sarlite.data.tables.transforms import Fitted
from sarlite.errors import DataError
from sarlite.graph.array_checks import Relation
from sarlite.graph.hetero import NodeType
from sarlite.tape import Tensor, ops
from sarlite.train.attribution import Inputs, Scorer, integrate_edges, integrate_inputs, occluded
from sarlite.train.load import Shard
from sarlite.train.neighborhood import Neighborhood
from sarlite.types import Array

GRADIENTS, OCCLUSION = METHODS = ("integrated gradients", "occlusion")
FEATURE, COLUMN, EDGE = KINDS = ("feature", "column", "edge")
X = "x "
"""Prefix of the node type in the keys of a neighbourhood's input rows."""
_TOLERANCES = {8: 1e-9, 4: 2e-4}
"""Largest accepted difference between outputs on a neighbourhood and on the whole graph, by bytes of the dtype.

The difference is relative to the largest absolute output, or to 1 if that is larger.
"""


class End(NamedTuple):
    """Node at the source or the destination end of an edge.

    Attributes
    ----------
    node_type : str
    id : str
        Id or name of the node.
    hops : int
        Number of hops from the node to the explained node.
    """

    node_type: str
    id: str
    hops: int


class Attribution(NamedTuple):
    """Contribution of a feature or of an edge to a prediction.

    Attributes
    ----------
    kind : {"feature", "column", "edge"}
        A "column" is one of several input columns that a transform makes from one feature.
    method : {"integrated gradients", "occlusion"}
    name : str
        Name of the feature or of the column, or the edge's relation, such as "user.buys.item".
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
    """Two numbers about all features, or all edges, of an explained node: the sum of their integrated gradients, and the node's score
    without them.

    The sum must equal the node's score minus the baseline's score, up to the error of the integration.

    Attributes
    ----------
    without : float
        Score with all features at the baseline; for edges, score without messages along the data's edges.
    sum : float
        Sum of the integrated gradients, which approximates the score minus `without`.
    """

    without: float
    sum: float


class Explanation(NamedTuple):
    """Explanation of one node's prediction: its score, and the contributions of features and edges to the score.

    Attributes
    ----------
    node : str
        Id or name of the node.
    label : str
        Name of the explained class, label or output.
    score : float
        Explained number: a log-odds, a probability or an output.
    attributions : list of Attribution
        The attributions with the largest absolute values for each kind and method, in descending order.
    features, edges : Total
        Sums of the integrated gradients.
    n_edges : int
        Number of edges of the data whose messages reach the node.
    n_occluded : int
        Number of edges that were left out one at a time.
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
        """Return the attributions of a `kind`, such as "edge", that a `method`, such as "occlusion", computed, in descending order
        of absolute value.
        """
        return [attribution for attribution in self.attributions if (attribution.kind, attribution.method) == (kind, method)]

    def missed(self, total: Total) -> float:
        """Return the error of integrated gradients. By theory their sum, in `total`, for all features or for all edges, equals the change
        of the score without these; the error is the sum minus this change.
        """
        return total.sum - (self.score - total.without)


class Explainer(NamedTuple):
    """Trained model with this rank's data and baseline rows, for explaining predictions of nodes one by one.

    Attributes
    ----------
    trained : TrainedRun
    part : Shard
        This rank's part of the data.
    model : Module
        Model on the whole graph; its replicated parameters are copied into the models of neighbourhoods.
    baseline : Inputs
        Baseline row for each node type and for each parameter with a row per node.
    hops : int
        Number of layers of the model.
    """

    trained: TrainedRun
    part: Shard
    model: nn.Module
    baseline: Inputs
    hops: int

    def explain(self, output: Array, around: Neighborhood) -> Explanation:
        """Return the explanation of the prediction for one node. `output` is the model's output for the node on the whole graph;
        `around` is the neighbourhood of the node, on which the explanation is computed.

        Parameters
        ----------
        output : ndarray
            The model's output for the node on the whole graph, shape (n_outputs,).
        around : Neighborhood
            Neighbourhood of the node.

        Raises
        ------
        DataError
            The model's output on the neighbourhood differs from `output`.
        """
        label, config = explained_label(self.trained, output), self.trained.config
        node_type = self.part.target if isinstance(self.part.graph, NodeType) else NODE
        (node,) = self._names(node_type, around.node_ids[node_type][[around.row]])
        scorer = self._scorer(around, score_of(config.score, self.trained.form, label))
        self._check(scorer, output, node)
        score = scorer.value()
        features, of_features = self._features(scorer, score)
        edges, of_edges, n_edges, n_occluded = self._edges(scorer, score, around)
        attributions = [*features, *edges]
        chosen = [attribution for kind in KINDS for method in METHODS for attribution in largest(
            [each for each in attributions if (each.kind, each.method) == (kind, method)], config.top)]
        return Explanation(node, label_names(self.trained, len(output))[label], score, chosen, of_features, of_edges, n_edges,
                           n_occluded)

    def _names(self, node_type: str, ids: Array) -> list[str]:
        names = self.part.names.get(node_type)
        return [*map(str, ids.tolist())] if names is None else names.of(ids)

    def _scorer(self, around: Neighborhood, score: Callable[[Tensor], Tensor]) -> Scorer:
        """Return a `Scorer`, which computes the explained number of the node at the centre of `around`, its neighbourhood. The scorer runs
        the model on the neighbourhood; `score` is a function that turns the model's output into the explained number.
        """
        run, features = self.trained.run, self.part.rows.features
        relational = isinstance(self.part.graph, NodeType)
        raw = features if relational else {NODE: features}
        x = {name: around.rows[X + name] for name in raw}
        without_labels = {name: rows[:, : raw[name].shape[1]] for name, rows in x.items()}
        none = np.zeros(len(around.node_ids[self.part.target if relational else NODE]), bool)
        rows = OwnedRows(without_labels if relational else without_labels[NODE], none.astype(np.int64), none, none, none)
        part = self.part._replace(graph=around.graph, rows=rows, n_classes=self.trained.meta["data"]["classes"])
        model, learned = new_model(Solo(), run, part, nn.Random(run.training.seed)), {}
        for name, parameter in model.named_parameters():
            if parameter.ids is not None:
                ids = around.node_ids[parameter.node_type if relational else NODE]
                learned[name] = around.rows[name][np.searchsorted(ids, parameter.ids)]
        model.load_state_dict({**self.model.state_arrays(), **learned})
        return Scorer(model.eval(), around.graph, Inputs(x, learned), around.row, score)

    def _check(self, scorer: Scorer, output: Array, node: str) -> None:
        """Raise a DataError that names `node` if the model's output on the node's neighbourhood, computed by `scorer`, differs from
        `output`, its output on the whole graph.
        """
        local = scorer.plain_output()
        if not np.abs(local - output).max() <= _TOLERANCES[output.dtype.itemsize] * max(1.0, np.abs(output).max()):
            at = int(np.argmax(np.abs(local - output)))
            raise DataError(f"node {node}: the model {self.trained.run.model.spec} computes {local[at]:.6g} on the {self.hops} "
                            f"hops around the node, but {output[at]:.6g} on the whole graph: its predictions depend on other "
                            "values than the rows that reach a node through its layers, as pna depends on the mean degree")

    def _features(self, scorer: Scorer, score: float) -> tuple[list[Attribution], Total]:
        """Return (attributions, total): first the attributions of a node's score to features; then the `Total` of all features, two numbers
        that check the integrated gradients. `scorer` computes the score with changed features; `score` is the unchanged score.
        """
        gradients = integrate_inputs(scorer, self.baseline, self.trained.config.steps)
        by_column = {name: values.sum(0) for name, values in gradients.x.items()}
        total = Total(scorer.value(scorer.inputs.on_path(self.baseline, 0.0)),
                      float(sum(values.sum() for tables in gradients for values in tables.values())))
        attributions = []
        for kind, name, node_type, columns in self._items():
            left = scorer.value(occluded(scorer.inputs, self.baseline, node_type, columns))
            attributions += [Attribution(kind, GRADIENTS, name, float(by_column[node_type][columns].sum())),
                             Attribution(kind, OCCLUSION, name, score - left)]
        for parameter, values in gradients.learned.items():
            mean = {parameter: np.broadcast_to(self.baseline.learned[parameter], values.shape)}
            left = scorer.value(scorer.inputs._replace(learned={**scorer.inputs.learned, **mean}))
            name = f"learned rows of {dict(self.model.named_parameters())[parameter].node_type or NODE}"
            attributions += [Attribution(FEATURE, GRADIENTS, name, float(values.sum())),
                             Attribution(FEATURE, OCCLUSION, name, score - left)]
        return attributions, total

    def _items(self) -> Iterator[tuple[str, str, str, list[int]]]:
        """Yield (kind, name, node type, list of input columns) for each input that gets an attribution: each feature, with all its
        columns, and each single column of a feature with several columns.
        """
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
        """Return (attributions of a node's `score` to the edges in its neighbourhood `around`, their `Total`, number of these edges, number
        of edges that were left out one by one). A `Total` has two numbers that check the integrated gradients. `scorer` computes the score
        without an edge.
        """
        removable = {relation: mask for relation, mask in around.removable(self.hops).items() if mask.any()}
        if not removable:
            return [], Total(score, 0.0), 0, 0
        gradients = integrate_edges(scorer, removable, self.trained.config.steps)
        without = scorer.gated_value({relation: np.where(mask, 0.0, 1.0) for relation, mask in removable.items()})
        edges = [(relation, int(at)) for relation, mask in removable.items() for at in np.flatnonzero(mask)]
        edges.sort(key=lambda edge: -abs(gradients[edge[0]][edge[1]]))
        tried = edges[: self.trained.config.occlude]
        ends = self._ends(around, edges)
        attributions = [Attribution(EDGE, GRADIENTS, _relation_name(relation), float(gradients[relation][at]), ends[relation, at])
                        for relation, at in edges]
        attributions += [Attribution(EDGE, OCCLUSION, _relation_name(relation), score - scorer.value_without(relation, at),
                                     ends[relation, at]) for relation, at in tried]
        return attributions, Total(without, float(sum(values.sum() for values in gradients.values()))), len(edges), len(tried)

    def _ends(self, around: Neighborhood, edges: Sequence[tuple[Relation, int]]) -> dict[tuple[Relation, int], tuple[End, End]]:
        """Return {edge: (source node, destination node)} for `edges` of the neighbourhood `around`. An edge is (relation, index of
        the edge in the relation).
        """
        nodes = {name: [End(name, node, hops) for node, hops in zip(self._names(name, ids), around.distances[name].tolist())]
                 for name, ids in around.node_ids.items()}
        return {(relation, at): (nodes[relation[0]][around.ends[relation][0][at]], nodes[relation[2]][around.ends[relation][1][at]])
                for relation, at in edges}


def _relation_name(relation: Relation) -> str:
    return relation[1] if relation == RELATION else ".".join(relation)


def largest(attributions: Sequence[Attribution], most: int) -> list[Attribution]:
    """Return at most `most` attributions, in descending order of their absolute values."""
    return sorted(attributions, key=lambda attribution: -abs(attribution.value))[:most]


def label_names(trained: TrainedRun, n_outputs: int) -> list[str]:
    """Return the names of the outputs of the trained model: its class names or, if classes have no names, `n_outputs` numbers as
    text, from "0" on.
    """
    return trained.meta.get("class_names") or [*map(str, range(n_outputs))]


def explained_label(trained: TrainedRun, output: Array) -> int:
    """Return the index of the explained entry of `output`, a node's row of outputs: the entry that --label names, else the
    predicted class; 0 for regression.
    """
    if trained.config.label is not None:
        return label_names(trained, len(output)).index(trained.config.label)
    if trained.form == "regress":
        return 0
    if trained.form == "classify" and trained.decision is not None:
        return int(trained.decision.of(output[None], False)[0])
    return int(output.argmax())


def score_of(kind: str, form: str, label: int) -> Callable[[Tensor], Tensor]:
    """Return a function from a model's output, shape (1, n_outputs), to the score of its entry `label`. `kind` is the score, such
    as "probability"; `form`, the kind of targets, tells whether softmax or sigmoid computes it.

    Parameters
    ----------
    kind : {"log-odds", "probability", "output"}
        Score: log(p / (1 - p)) of the probability p, p itself, or the output. For "regress" the score is the output.
    form : {"classify", "multilabel", "regress"}
        Form of the targets.
    label : int
        Index of the output.
    """
    def score(output: Tensor) -> Tensor:
        if kind == "probability" and form != "regress":
            output = ops.softmax(output, 1) if form == "classify" else ops.sigmoid(output)
        value = output[:, label : label + 1].sum()
        if kind == "log-odds" and form == "classify" and output.shape[1] > 1:
            value = value - ops.concat([output[:, :label], output[:, label + 1 :]], 1).logsumexp()
        return value

    return score


def column_names(part: Shard, node_type: str, width: int, labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (names of the `width` input columns of the type `node_type`, for each column the name of the feature that it was made from).
    `part` has the data's features; the columns after them are label inputs, named by the classes `labels`.

    Parameters
    ----------
    part : Shard
    node_type : str
    width : int
        Number of input columns. Columns after the features are label inputs.
    labels : sequence of str
        Names of the classes.

    Returns
    -------
    columns, features : list of str
        Names of length `width`. For relational data, names begin with the node type.
    """
    columns, transforms = next(entry[1:] for entry in part.schema["nodes"] if entry[0] == node_type)
    names = [f"feature {at}" for at in range(columns or 0)] if not isinstance(columns, list) else list(columns)
    origins = Fitted.from_json(transforms).origins if transforms else {}
    features = [origins.get(name, name) for name in names]
    shown = labels[: width - len(names)]
    names, features = names + [f"known label={label}" for label in shown], features + ["known label"] * len(shown)
    prefix = f"{node_type}." if isinstance(part.graph, NodeType) else ""
    return [prefix + name for name in names], [prefix + name for name in features]
