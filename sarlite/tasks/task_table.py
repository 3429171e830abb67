"""The tasks by name."""

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
"""Tasks by the name that `--task` takes."""


def task_type(name: str, *, labelled_edges: bool = False, graph_set: bool = False) -> type[Task]:
    """Return the task of a run.

    Parameters
    ----------
    name : str
        Of `TASKS`: as `--task` says, or as the labels of the data are.
    labelled_edges : bool
        True if a table has labels of edges.
    graph_set : bool
        True if the data are a set of graphs, whose labels are the graphs'.
    """
    return EdgeTask if labelled_edges else GraphTask if graph_set and TASKS[name] is NodeTask else TASKS[name]
