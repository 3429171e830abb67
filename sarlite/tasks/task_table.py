"""Table of the task classes, by the name that the option --task takes."""

from sarlite.tasks.edge_task import EdgeTask
from sarlite.tasks.graph_task import GraphTask
from sarlite.tasks.link_task import LinkTask
from sarlite.tasks.node_task import NodeTask
from sarlite.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    "classify": NodeTask,
    "multilabel": NodeTask,
    "regress": NodeTask,
    "link": LinkTask,
}
"""Task classes by the name in the option --task."""


def task_type(name: str, *, labelled_edges: bool = False, graph_set: bool = False) -> type[Task]:
    """Return the task class for `name`, the value of the option --task. The labels belong to edges if `labelled_edges`, to whole graphs if
    `graph_set`, and otherwise to nodes.

    Parameters
    ----------
    name : str
        Key of `TASKS`: the option --task, or the form of the labels in the data.
    labelled_edges : bool
        True if the labels are in a table of labelled edges.
    graph_set : bool
        True if the data are a set of graphs with labels of graphs.

    Examples
    --------
    >>> task_type("classify").__name__, task_type("classify", graph_set=True).__name__
    ('NodeTask', 'GraphTask')
    """
    return EdgeTask if labelled_edges else GraphTask if graph_set and TASKS[name] is NodeTask else TASKS[name]
