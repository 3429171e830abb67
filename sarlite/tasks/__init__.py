"""Tasks: what a training predicts. A task says how targets are read and checked, and has the loss and the metric.

`task.Task` is the contract. `node_task`, `edge_task`, `link_task` and `graph_task` have one task each.
`task_table.TASKS` lists the tasks by the name that `--task` takes.
"""
