"""RelationalLayer: what one layer of a relational model computes on. What leaves one node type is fed by one fetch."""

from collections.abc import Mapping
from typing import Any

from sarlite.errors import ConfigError, ShapeError
from sarlite.sar.graph.layer_graph import LayerGraph
from sarlite.sar.operators import fn, relations, table
from sarlite.sar.operators.evaluation import EVALUATIONS, check
from sarlite.tape import Tensor

Relation = tuple[str, str, str]  # (source type, name, destination type)


class RelationalLayer:
    """What one layer of a relational model computes on: a `LayerGraph` for each relation.

    A `HeteroGraph` is one, whose layers are all itself, and so is each layer of a batch.

    Attributes
    ----------
    relations : tuple of (source type, name, destination type)
    """

    relations: tuple[Relation, ...]

    def by_source(self, chosen: Any) -> list[list[LayerGraph]]:
        """Return the graphs of some relations, a list for each source type, which one fetch serves.

        Collective at first.
        """
        raise NotImplementedError

    def of(self, node_type: str) -> Any:
        """Return the destinations of one type: their `n_dst`, `dst_ids`, `node_type` and `comm`."""
        raise NotImplementedError

    def enter(self, h: Any) -> tuple["RelationalLayer", Any]:
        """Return (graph, h) for a layer, as they are; see `LayerGraph.enter`."""
        return self, h

    def dst(self, h: Any) -> Any:
        """Return the destinations' own rows of h by type."""
        return h

    def aggregate(self, messages: Mapping[Relation, Any], reducer: str, *,
                  own: Mapping[str, tuple[Tensor, Tensor]] | None = None,
                  evaluation: str | None = None) -> dict[str, Tensor]:
        """Return by destination type out_i = sum over relations r of reduce over r's in-edges (j, i) of messages[r].

        Collective.

        Parameters
        ----------
        messages : dict of relation to fn.copy_src(x), fn.linear(x, weight), fn.mul_edge(x, weight), fn.attend(...), \
                fn.attend_linear(...), fn.message(function, src, dst, edge) or a function
            Source rows are those of the relation's source type, in the order of `node_ids`. Others' relations are left
            out. The same relations on every rank.
        reducer : {"sum", "mean", "sym", "max", "min", "softmax"}
            As of `Graph.aggregate`, within each relation: "sum", "mean" and "sym" of copy_src and linear, "max" and
            "min" of copy_src, these but "sym" of mul_edge, "sum" of attend and attend_linear, all but "sym" of a
            function. "sym" divides by the square roots of the degree into i and of that out of j, both in the relation.
        own : dict of str to (x, weight), optional
            x W is added to the sums of a type, (n_dst, n_in) by (n_in, n_out): what a layer makes of the destinations'
            own rows.
        evaluation : {"inside", "first"}, optional
            Of the weights of `fn.linear`: inside the message, or aggregated first and transformed after; equal to
            rounding. By default for each relation what costs fewer bytes: see `sar.operators.evaluation`, and
            `evaluations` for what was chosen.

        Returns
        -------
        dict of str to Tensor (n_dst, ...)
            0 where a node has no edges.

        Raises
        ------
        ConfigError, ShapeError
            An unknown relation, a message that does not go with the reducer, an input that does not fit; sums and
            products that are added up have one float dtype.

        Notes
        -----
        One fetch for each source type serves all its relations here: the rows that any of them needs travel once, and
        once again in backward where an operator needs them (case 2: a weight inside, attention). A tensor that several
        messages have travels once. The sum or mean of a constant tensor's rows is kept, as of `Graph.aggregate`. The
        first call for a set of relations out of a type finds what is to be exchanged. Source: SAR appendix A, Eq. 4.
        """
        self._check_own(own or {})
        check(evaluation, EVALUATIONS)
        self._check_messages(messages, reducer)
        products, fetches = [(to, x, weight) for to, (x, weight) in (own or {}).items()], []
        sums: dict[str, Tensor] = {}
        for graphs in self.by_source(messages):
            calls = [(graph, table.call(graph, _evaluated(messages[graph.relation], evaluation), reducer))
                     for graph in graphs]
            wanted = [(graph, _key(graph, call), call) for graph, call in calls if call.found is None]
            apart = any(key is graph.relation for graph, key, _ in wanted)
            outputs = relations.add_up([wanted], []) if apart else {}
            fetches += [wanted] if wanted and not apart else []
            for graph, call in calls:
                to, out = graph.relation[2], call.found
                if graph.relation in outputs:
                    out = call.keep(outputs.pop(graph.relation))
                if out is not None and call.weight is not None:
                    products.append((to, out, call.weight))
                elif out is not None:
                    _add(sums, {to: out})
            _add(sums, outputs)
        return _add(sums, relations.add_up(fetches, products) if fetches or products else {})

    def _check_own(self, own):
        for to, (x, weight) in own.items():
            n_dst = self.of(to).n_dst
            if x.ndim != 2 or weight.ndim != 2 or x.shape != (n_dst, len(weight)):
                found = f"x {x.shape} and weight {weight.shape}"
                raise ShapeError(f"own[{to!r}]: {found} are not ({n_dst}, n_in) and (n_in, n_out)")

    def _check_messages(self, messages, reducer):
        for relation, message in messages.items():
            if relation not in self.relations:
                raise ConfigError(f"relation {relation!r} is none of this graph: {', '.join(map(str, self.relations))}")
            try:
                table.find(message, reducer)
            except ConfigError as error:
                raise ConfigError(f"relation {relation!r}: {error}") from None


def _evaluated(message, evaluation):
    return message._replace(evaluation=evaluation) if evaluation and isinstance(message, fn.Linear) else message


def _key(graph, call):
    """What an output is added to: its destination type's sum; or itself, where it is kept, multiplied, or apart."""
    return graph.relation if graph.apart or call.memo is not None or call.weight is not None else graph.relation[2]


def _add(sums, outputs):
    """Add outputs by destination type to the sums, which are returned."""
    for to, out in outputs.items():
        sums[to] = sums[to] + out if to in sums else out
    return sums
