"""RelationalLayer: the relations that one layer of a relational model computes on."""

import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from sarlite.errors import ConfigError, ShapeError
from sarlite.graph.array_checks import Relation, check_rows
from sarlite.graph.layer_graph import LayerGraph
from sarlite.graph.shared_state import OutputRows
from sarlite.operators import fn, operator_table, relation_sums
from sarlite.operators.evaluation import EVALUATIONS, check
from sarlite.tape import Tensor


class NodeTypeRows(OutputRows, Protocol):
    """Protocol of an object that describes the rows of one node type that a layer outputs on this rank."""

    @property
    def n_dst(self) -> int: ...
    @property
    def node_type(self) -> str: ...


class RelationalLayer:
    """Base class of the graphs that one layer of a relational model computes on: a `LayerGraph` for each relation.

    Every layer of a full-batch model computes on the same RelationalLayer, the `HeteroGraph`; a batch has another one
    for each layer. One fetch of a node type's rows serves all relations out of that type.

    Attributes
    ----------
    relations : tuple of (source type, name, destination type)
    """

    relations: tuple[Relation, ...]

    def by_source(self, chosen: Collection[Relation]) -> list[dict[Relation, LayerGraph]]:
        """Return the graphs of the relations in `chosen` as a list of dicts {relation: graph}, a dict for each exchange: the
        relations in a dict share one fetch of source rows. The first call is collective.
        """
        raise NotImplementedError

    def of(self, node_type: str) -> NodeTypeRows:
        """Return a description of the destination rows of one node type: their number and their type."""
        raise NotImplementedError

    def enter(self, h: Mapping[str, Tensor]) -> tuple["RelationalLayer", Mapping[str, Tensor]]:
        """Return (graph, input rows by node type) that a layer computes with: this graph, and `h` unchanged."""
        return self, h

    def dst(self, h: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the destination rows by node type, from a layer's input rows by node type."""
        return h

    def aggregate(self, messages: Mapping[Relation, fn.BuiltIn | Callable[..., Tensor | tuple[Tensor, Tensor]]], reducer: str, *,
                  self_terms: Mapping[str, tuple[Tensor, Tensor]] | None = None, evaluation: str | None = None,
                  own: Mapping[str, tuple[Tensor, Tensor]] | None = None) -> dict[str, Tensor]:
        """Return {node type: rows (n_dst, ...)}: the messages of each relation, reduced by `reducer`, are summed over the relations
        into the type. `self_terms`, {node type: (x, W)}, adds x W (`own` is a former name). `evaluation` "inside" multiplies by the
        weight of `fn.linear` in each message, "first" after the sum (None: the cheaper). Collective.

        out_i = sum over relations r into i's type of (reduce over r's in-edges (j, i) of messages[r]).

        Parameters
        ----------
        messages : dict of relation to fn.copy_src(x), fn.linear(x, weight), fn.mul_edge(x, weight), fn.attend(...), \
                fn.attend_linear(...), fn.message(function, src, dst, edge) or a function
            Message of each relation; its source rows are the rows of the relation's source type, in the order of
            `node_ids`. A relation without a message is left out. Every rank passes the same relations.
        reducer : {"sum", "mean", "sym", "max", "min", "softmax"}
            Reducer within each relation; see `Graph.aggregate`. `copy_src` supports all but "softmax"; `linear` "sum",
            "mean" and "sym"; `mul_edge` "sum", "mean", "max" and "min"; `attend` and `attend_linear` "sum"; a function
            all but "sym". "sym" divides by the square roots of i's in-degree and j's out-degree in the relation.
        self_terms : dict of str to (x, weight), optional
            Products x W that are added to the sums of a destination type, such as a layer's transform of the nodes'
            own rows; x is (n_dst, n_in), W is (n_in, n_out).
        evaluation : {"inside", "first"}, optional
            How `fn.linear` is evaluated: "inside" multiplies by the weight inside the message, "first" sums first and
            multiplies the sums. The results are equal up to rounding. By default each relation takes the way that moves
            fewer bytes; `HeteroGraph.evaluations` lists the choices.
        own : dict, optional
            Deprecated name of `self_terms`.

        Returns
        -------
        dict of str to Tensor (n_dst, ...)
            Sums by destination type; 0 for a node without edges.

        Raises
        ------
        ConfigError, ShapeError
            A relation is unknown, a message does not fit the reducer, an input does not fit the graph, or sums and
            products that are added up have different float dtypes.

        Notes
        -----
        One fetch for each source type serves all relations out of it. A row that several relations need travels once,
        and once more in backward if an operator needs the row again (case 2: a weight inside the message, attention). A
        tensor in several messages travels once. The sum or mean of a constant tensor's rows is stored, as by
        `Graph.aggregate`; a separate fetch computes the sum in the first call, so that all calls add in the same order.
        The first call for a set of relations out of a type builds their exchange.

        References
        ----------
        SAR, appendix A, Eq. 4.

        Examples
        --------
        >>> import numpy as np
        >>> from sarlite import HeteroGraph, Tensor, fn
        >>> writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
        >>> graph = HeteroGraph.from_edges({writes: ([0, 1], [0, 1]), cites: ([0], [1])}, {"author": 2, "paper": 2})
        >>> authors, papers = Tensor(np.array([[1.0], [2.0]])), Tensor(np.array([[10.0], [20.0]]))
        >>> out = graph.aggregate({writes: fn.copy_src(authors), cites: fn.copy_src(papers)}, "sum")
        >>> out["paper"].data.tolist()
        [[1.0], [12.0]]
        """
        if own is not None:
            warnings.warn("aggregate: own is now called self_terms", DeprecationWarning, stacklevel=2)
            self_terms = own
        self._check_self_terms(self_terms or {})
        check(evaluation, EVALUATIONS)
        self._check_messages(messages, reducer)
        products: list[relation_sums.Product] = [(to, x, weight) for to, (x, weight) in (self_terms or {}).items()]
        fetches: list[list[relation_sums.Summand]] = []
        sums: dict[str, Tensor] = {}
        for graphs in self.by_source(messages):
            calls = {relation: operator_table.call(graph, _evaluated(messages[relation], evaluation), reducer)
                     for relation, graph in graphs.items()}
            _store_constant_sums(graphs, calls)
            pending: list[relation_sums.Summand] = [(graph, _sum_key(relation, graph, calls[relation]), calls[relation])
                       for relation, graph in graphs.items() if calls[relation].kept_sums is None]
            has_separate = any(isinstance(key, tuple) for _, key, _ in pending)
            outputs = relation_sums.add_up([pending], []) if has_separate else {}
            fetches += [pending] if pending and not has_separate else []
            for relation, call in calls.items():
                to, out = relation[2], outputs.pop(relation, call.kept_output)
                if out is not None and call.weight is not None:
                    products.append((to, out, call.weight))
                elif out is not None:
                    _add(sums, {to: out})
            _add(sums, outputs)
        return _add(sums, relation_sums.add_up(fetches, products) if fetches or products else {})

    def _check_self_terms(self, self_terms):
        for to, (x, weight) in self_terms.items():
            n_dst = self.of(to).n_dst
            if x.ndim != 2 or weight.ndim != 2 or x.shape != (n_dst, len(weight)):
                needed = f"({n_dst}, n_in) and (n_in, n_out)"
                raise ShapeError(f"self_terms[{to!r}]: x {x.shape} and weight {weight.shape} are not {needed}")
            check_rows(f"self_terms[{to!r}]: x", x, self.of(to).comm.size)

    def _check_messages(self, messages, reducer):
        for relation, message in messages.items():
            if relation not in self.relations:
                raise ConfigError(f"relation {relation!r} is not a relation of this graph: {', '.join(map(str, self.relations))}")
            try:
                operator_table.find(message, reducer)
            except ConfigError as error:
                raise ConfigError(f"relation {relation!r}: {error}") from None


def _evaluated(message, evaluation):
    return message._replace(evaluation=evaluation) if evaluation and isinstance(message, fn.Linear) else message


def _store_constant_sums(graphs: Mapping[Relation, LayerGraph], calls: Mapping[Any, operator_table.Call]) -> None:
    """Compute and store the sums over constant rows, such as input features, that `calls` need and that are not stored yet. A
    separate fetch does this, so that the first aggregation adds up the relations in the same order as later ones, which read the
    stored sums.
    """
    missing: list[relation_sums.Summand] = [(graphs[relation], relation, call) for relation, call in calls.items()
               if call.kept_sums is not None and call.kept_output is None]
    for relation, out in relation_sums.add_up([missing], []).items() if missing else ():
        calls[relation].keep(out)


def _sum_key(relation: Relation, graph: LayerGraph, call: operator_table.Call) -> Relation | str:
    """Return the key of the sum that a relation's output is added to: the destination type, so that relations into one type are
    added up. A relation with a fetch of its own, or with a weight that multiplies its sum afterwards, has a sum and a key of its
    own.
    """
    separate = graph.has_own_exchange or call.weight is not None
    return relation if separate else relation[2]


def _add(sums: dict[str, Tensor], outputs: Mapping[Any, Tensor]) -> dict[str, Tensor]:
    """Add `outputs`, pairs of node type and rows, to the rows in `sums`, {node type: rows}, in place; return `sums`."""
    for to, out in outputs.items():
        sums[to] = sums[to] + out if to in sums else out
    return sums
