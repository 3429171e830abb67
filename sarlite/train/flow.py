"""Full-batch training over message-flow graphs: at each layer only the nodes that reach a labelled one (SAR appendix B)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sarlite.comm import together
from sarlite.errors import ConfigError
from sarlite.minibatch.batch import Batch
from sarlite.minibatch.flow import count_layers, message_flow
from sarlite.sar.graph.graph import Graph
from sarlite.tape import Tensor, no_grad
from sarlite.train.loop import Trainer, check_output


def flows(graph: Graph, splits: Sequence[Any], n_layers: int, x: Any, labels: Any) -> tuple[Batch, Batch]:
    """Return the message-flow graphs of the training rows, the first of `splits`, and of the rows of all of them. Collective."""
    return (message_flow(graph, splits[0], n_layers, x, labels), message_flow(graph, np.concatenate(splits), n_layers, x, labels))


class FlowTrainer(Trainer):
    """Trains as `Trainer` does, but computes at each layer only rows that reach a training row; in evaluation, one of any split.

    Losses, gradients and scores are the full graph's, but with a batch norm, whose statistics are over the rows that are computed.
    Construction is collective.

    Parameters
    ----------
    *args, **options
        As of `Trainer`.

    Raises
    ------
    ConfigError
        On every rank: the model does not ask for its layers' graphs, `graph.layers(n)`.

    Notes
    -----
    Memory: that of two `message_flow` graphs beside the graph.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if not isinstance(self.graph, Graph) or isinstance(self.x, dict):
            raise ConfigError(f"message flow is over a Graph, but graph is a {type(self.graph).__name__}")
        graph, x = self.graph, self.x.data
        with no_grad():
            self.n_layers = together(self.comm, lambda: count_layers(self.model, graph, self.x))
        rows = list(self.rows.values())
        self.flow, self.scored_flow = flows(graph, rows, self.n_layers, x, self.labels)
        self.scored_rows = dict(zip(self.rows, np.split(self.scored_flow.rows, np.cumsum([len(own) for own in rows[:-1]]))))

    def step(self, epoch: int | None = None) -> float:
        if epoch is not None:
            self.training_step.n_steps = epoch
        flow, rows, count = self.flow, self.flow.rows, self.flow.n_global
        assert flow.labels is not None
        if self.shown is not None:
            hidden, count = self.shown.draw(self.training_step.n_steps)
            rows = rows[np.isin(self.rows["train"], hidden)]
        return self.training_step(flow, self._inputs(flow), flow.labels, rows, count, self.loss)

    def _inputs(self, flow):
        """Its rows of x, which change where labels are shown."""
        return flow.x if self.shown is None else Tensor(flow.take(self.x.data))

    def _add_all(self, metrics):
        flow = self.scored_flow
        self.model.eval()
        if self.shown is not None:
            self.shown.show_all()
        with self.buffers, no_grad():
            output = self.model(flow, self._inputs(flow))
            check_output(output, type(self.model).__name__, flow.n_dst, self.n_classes)
            return self._add(metrics, output, flow.labels, self.scored_rows)

    def counted(self) -> dict[str, Any]:
        """Return "message_flow": by layer "rows", "edges" and "halo_rows" of all ranks in training, and the graph's.

        Collective.
        """
        of = [(g.n_dst, g.n_edges, g.plan.n_halo) for g in (*self.flow.layers(self.n_layers), self.graph)]
        *layers, full = self.comm.allreduce(np.array(of, np.int64)).tolist()
        names = ("rows", "edges", "halo_rows")
        return {"message_flow": {"layers": [dict(zip(names, layer)) for layer in layers], "graph": dict(zip(names, full))}}
