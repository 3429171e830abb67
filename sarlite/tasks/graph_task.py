"""GraphTask: prediction of labels of whole graphs."""

from collections.abc import Callable
from typing import Any, ClassVar

from sarlite.graph.graph_set import GraphSet
from sarlite.minibatch import GraphLoader
from sarlite.minibatch.loader import Loader
from sarlite.nn import Module, Random
from sarlite.tasks.class_losses import ClassWeights
from sarlite.tasks.target_forms import FORMS
from sarlite.tasks.task import RunSettings, SamplingChoices, Task, TrainingChoices, UserLoss, one_of
from sarlite.types import Array, ArrayLike


class GraphTask(Task):
    """Prediction of labels of the graphs of a `GraphSet`.

    Parameters
    ----------
    form, loss, metric, class_weights, positive
        See `NodeTask`.

    Raises
    ------
    ConfigError
        The form, loss or metric is unknown.

    Examples
    --------
    >>> from sarlite.tasks.graph_task import GraphTask
    >>> task = GraphTask("classify", metric="roc-auc")
    >>> task.metric, task.lower
    ('roc-auc', False)
    """

    graph_types: ClassVar[tuple[type, ...]] = (GraphSet,)

    def __init__(self, form: str = "classify", loss: str | UserLoss | None = None, metric: str | None = None, *,
                 class_weights: ClassWeights | None = None, positive: int = 1) -> None:
        super().__init__(FORMS[one_of("task", form, FORMS)], loss, metric, class_weights=class_weights,
                         positive=positive)

    @classmethod
    def of_run(cls, name: str, training: TrainingChoices, n_outputs: int) -> Task:
        return cls(name, **cls.objective(training))

    @classmethod
    def make_model(cls, encoder: Callable[..., Module], run: RunSettings, nodes: object, n_outputs: int, rng: Random) -> Module:
        return run.graphs.read_out(encoder(run.graphs.readout_width), n_outputs, rng, run.model.dtype)

    @classmethod
    def make_loader(cls, sampling: SamplingChoices, graph: Any, x: Any, targets: Array, train: ArrayLike | slice, **options: Any) -> Loader:
        return GraphLoader(graph, x, targets, train, **options)
