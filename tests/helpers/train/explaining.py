"""Runs of the explain command in this process."""

import csv

from sarlite.cli import explain_command
from sarlite.comm import Solo, threads


def explain_here(run_dir, nodes, out, *flags):
    """Run the explain command for a run's predictions of the ids `nodes` in this process; return the rows of the CSV file `out`."""
    listed = out.with_suffix(".ids.txt")
    listed.write_text("".join(f"{node}\n" for node in nodes))
    words = ["--checkpoint", run_dir, "--nodes", listed, "--out", out, "--threads", 1, "--progress", "none", *flags]
    options, command_options = explain_command.parse([str(word) for word in words])
    if options.machine.ranks > 1:
        threads.run(options.machine.ranks, explain_command.explain, options, command_options)
    else:
        explain_command.explain(Solo(), options, command_options)
    with out.open() as file:
        rows = list(csv.DictReader(file))
    return [{**row, "attribution": float(row["attribution"]), "rank": int(row["rank"])} for row in rows]


def of(rows, kind, method="integrated gradients", node=None):
    """Return the dicts in `rows` of one kind and one method of explanation; with `node`, of that node alone."""
    return [row for row in rows if (row["kind"], row["method"]) == (kind, method) and node in (None, row["node"])]
