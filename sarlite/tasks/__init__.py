"""Tasks: the objectives of a training. A task reads and checks targets, and has a loss and a metric.

`task.Task` is the contract. `node_task`, `edge_task`, `link_task` and `graph_task` have one task each.
`task_table.TASKS` lists the tasks by the name that `--task` takes.
"""
