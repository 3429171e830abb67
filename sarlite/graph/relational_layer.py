"""RelationalLayer: the relations that one layer of a relational model computes on."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sarlite.errors import ConfigError, ShapeError
from sarlite.graph.array_checks import Relation, check_rows
from sarlite.graph.layer_graph import LayerGraph
from sarlite.operators import fn, operator_table, relation_sums
from sarlite.operators.evaluation import EVALUATIONS, check
from sarlite.tape import Tensor


class RelationalLayer:
    """The graphs that one layer of a relational model computes on: a `LayerGraph` for each relation.

    A `HeteroGraph` is the RelationalLayer of all its layers; a batch has a RelationalLayer for each layer. One fetch of
    a node type's rows serves the relations out of that type.

    Attributes
    ----------
    relations : tuple of (source type, name, destination type)
    """

    relations: tuple[Relation, ...]

    def by_source(self, chosen: Collection[Relation]) -> list[dict[Relation, LayerGraph]]:
        """Return the graphs of some relations, a dict for each fetch. The first call is collective."""
        raise NotImplementedError

    def of(self, node_type: str) -> Any:
        """Return the destinations of one type, which have `n_dst`, `dst_ids`, `node_type` and `comm`."""
        raise NotImplementedError

    def enter(self, h: Any) -> tuple["RelationalLayer", Any]:
        """Return (graph, h) for a layer; see `LayerGraph.enter`."""
        return self, h

    def dst(self, h: Any) -> Any:
        """Return the destination rows of h by type."""
        return h

    def aggregate(self, messages: Mapping[Relation, fn.BuiltIn | Callable[..., Any]], reducer: str, *,
                  own: Mapping[str, tuple[Tensor, Tensor]] | None = None,
                  evaluation: str | None = None) -> dict[str, Tensor]:
        """Return {destination type: out}, where out_i sums the aggregations of all relations into the type. Collective.

        out_i = sum over relations r of (reduce over r's in-edges (j, i) of messages[r]).

        Parameters
        ----------
        messages : dict of relation to fn.copy_src(x), fn.linear(x, weight), fn.mul_edge(x, weight), fn.attend(...), \
                fn.attend_linear(...), fn.message(function, src, dst, edge) or a function
            Source rows are those of the relation's source type, in the order of `node_ids`. Relations without a message
            are left out. The same relations on every rank.
        reducer : {"sum", "mean", "sym", "max", "min", "softmax"}
            Reducer within each relation; see `Graph.aggregate`. `copy_src` supports all but "softmax"; `linear` "sum",
            "mean" and "sym"; `mul_edge` "sum", "mean", "max" and "min"; `attend` and `attend_linear` "sum"; a function
            all but "sym". "sym" divides by the square roots of i's in-degree and j's out-degree in the relation.
        own : dict of str to (x, weight), optional
            Products x W, (n_dst, n_in) by (n_in, n_out), that are added to the sums of a type: a layer's transform of
            the destinations' own rows.
        evaluation : {"inside", "first"}, optional
            Evaluation order of the weights of `fn.linear`: inside the message, or sums first and products after. The
            results are equal up to rounding. By default each relation takes the order that moves fewer bytes; see
            `operators.evaluation`, and `evaluations` for the chosen orders.

        Returns
        -------
        dict of str to Tensor (n_dst, ...)
            0 for a node without edges.

        Raises
        ------
        ConfigError, ShapeError
            An unknown relation, a message that does not fit the reducer, an input that does not fit, or sums and
            products of different float dtypes that are added up.

        Notes
        -----
        One fetch for each source type serves all its relations. A row that several relations need travels once, and
        once more in backward if an operator needs it (case 2: a weight inside, attention). A tensor in several messages
        travels once. The sum or mean of a constant tensor's rows is stored, as by `Graph.aggregate`; the first call
        computes it by a fetch of its own, so that all calls add up in one order. The first call for a set of relations
        out of a type builds their exchange.

        References
        ----------
        SAR, appendix A, Eq. 4.
        """
        self._check_own(own or {})
        check(evaluation, EVALUATIONS)
        self._check_messages(messages, reducer)
        products: list[relation_sums.Product] = [(to, x, weight) for to, (x, weight) in (own or {}).items()]
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

    def _check_own(self, own):
        for to, (x, weight) in own.items():
            n_dst = self.of(to).n_dst
            if x.ndim != 2 or weight.ndim != 2 or x.shape != (n_dst, len(weight)):
                needed = f"({n_dst}, n_in) and (n_in, n_out)"
                raise ShapeError(f"own[{to!r}]: x {x.shape} and weight {weight.shape} are not {needed}")
            check_rows(f"own[{to!r}]: x", x, self.of(to).comm.size)

    def _check_messages(self, messages, reducer):
        for relation, message in messages.items():
            if relation not in self.relations:
                raise ConfigError(f"relation {relation!r} is none of this graph: {', '.join(map(str, self.relations))}")
            try:
                operator_table.find(message, reducer)
            except ConfigError as error:
                raise ConfigError(f"relation {relation!r}: {error}") from None


def _evaluated(message, evaluation):
    return message._replace(evaluation=evaluation) if evaluation and isinstance(message, fn.Linear) else message


def _store_constant_sums(graphs, calls):
    """Store the sums of constant rows that no earlier call has stored, by a fetch of their own.

    Then the first call adds up the other relations in the order of all later calls.
    """
    missing = [(graphs[relation], relation, call) for relation, call in calls.items()
               if call.kept_sums is not None and call.kept_output is None]
    for relation, out in relation_sums.add_up([missing], []).items() if missing else ():
        calls[relation].keep(out)


def _sum_key(relation, graph, call):
    """Return the relation if its output is multiplied or fetched alone; else the type whose sum it joins."""
    separate = graph.has_own_exchange or call.weight is not None
    return relation if separate else relation[2]


def _add(sums, outputs):
    """Add outputs by destination type to `sums`; return `sums`."""
    for to, out in outputs.items():
        sums[to] = sums[to] + out if to in sums else out
    return sums
