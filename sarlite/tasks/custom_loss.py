"""Training with a loss function of the user."""

from collections.abc import Callable
from typing import Any

from sarlite.minibatch.batch import FullBatch
from sarlite.tape import Tensor
from sarlite.tasks.link_loader import resampled
from sarlite.tasks.target_forms import ClassForm, Splits
from sarlite.tasks.task import Task
from sarlite.types import Array


class CustomLoss(Task):
    """A loss of the user's own in place of a task's. Targets are not checked, and there is no metric.

    For targets of a known form give the loss to a task, as `NodeTask("classify", loss=...)`, which has a metric.

    Parameters
    ----------
    loss : callable
        (output, targets) -> scalar Tensor, a mean over the rows that it is given.
    """

    def __init__(self, loss: Callable[[Tensor, Array], Tensor]) -> None:
        super().__init__(ClassForm(), loss)

    def check_arguments(self, graph: Any, model: Any, x: Any, batches: Any, scoring: Any) -> None:
        """Accept any graph."""

    def check(self, targets: Array, rows: Splits, n_dst: int) -> None:
        """Accept any targets."""

    def n_classes(self, targets: Array, rows: Splits) -> int:
        """Return 0: an output may have any number of columns."""
        return 0

    def make_metric(self) -> None:
        """Return None."""

    def full_batches(self, full: FullBatch) -> Any:
        return resampled(full)
