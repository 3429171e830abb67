"""CustomLoss: training with a loss function of the user in place of a task."""

from collections.abc import Callable

from sarlite.minibatch.batch import FixedBatch, FullBatch
from sarlite.tape import Tensor
from sarlite.tasks.link_loader import resampled
from sarlite.tasks.target_forms import ClassForm, Splits
from sarlite.tasks.task import Task
from sarlite.types import Array


class CustomLoss(Task):
    """Task with a loss function of the user, without checks of the targets and without a metric.

    `Trainer(..., loss=function)` makes a CustomLoss. If the targets have a known form, use `NodeTask("classify",
    loss=function)` in its place, which has a metric.

    Parameters
    ----------
    loss : callable
        Function (output, targets) -> scalar Tensor, the mean over its rows.

    Examples
    --------
    >>> task = CustomLoss(lambda output, targets: (output * output).mean())
    >>> task.make_metric() is None
    True
    """

    def __init__(self, loss: Callable[[Tensor, Array], Tensor]) -> None:
        super().__init__(ClassForm(), loss)

    def check_arguments(self, graph: object, model: object, x: object, batches: object, scoring: object) -> None:
        """Accept all arguments: a loss function of the user can fit any arguments of `Trainer`."""

    def check(self, targets: Array, rows: Splits, n_dst: int) -> None:
        """Accept all targets: a loss function of the user can take any targets."""

    def n_classes(self, targets: Array, rows: Splits) -> int:
        """Return 0: a loss of the user may take any number of output columns."""
        return 0

    def make_metric(self) -> None:
        """Return None: a task with a loss of the user has no metric."""

    def full_batches(self, full: FullBatch) -> FixedBatch:
        return resampled(full)
