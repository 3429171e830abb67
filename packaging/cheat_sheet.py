"""Print the table of docs/choosing.md that says which model goes with which feature.

    python packaging/cheat_sheet.py

Every cell is an attempt: the training command runs one epoch of the model with the feature on a graph of 60 nodes. A cell says "yes" where
the command trained, and "no" where the command refused. The refusals go to the standard error output, so that a reader can see whether each
has the right reason.
"""

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from sarlite.cli import train_command
from sarlite.models import MODELS, RELATIONAL

LAYERS = {"sgc": [], "appnp": ["--hops", "2"], "sign": ["--hops", "2"]}
"""Options in place of `--layers 2` for models that have hops, or one layer."""
NODES = ["--data", "edges:edges.csv,src=src,dst=dst,nodes=nodes.csv,id=id,labels=label,features=a+b,train=0.5,val=0.2"]
RELATIONS = ["--data", "tables:graph.toml"]
FEATURES = {
    "edge weights": ["--edge-weights"],
    "edge features": ["--edge-features"],
    "relations": [],
    "minibatches": ["--batch-size", "20", "--fanouts", "3,3"],
    "message flow": ["--mfg"],
    "links": ["--task", "link", "--link-val", "0.1", "--link-test", "0.1"],
    "sets of graphs": ["--data", "tu:SET,train=0.6,val=0.2"],
    "bfloat16 rows": ["--rows", "bfloat16"],
    "exact numerics": ["--numerics", "exact"],
}


def refusal(arguments):
    """Run the training command with `arguments` for one epoch; return None if it trains, else its error message."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            status = train_command.main([*arguments, "--epochs", "1", "--no-baseline"])
        except SystemExit as end:
            status = end.code
    if status not in (0, 2):
        raise RuntimeError(f"{' '.join(arguments)}: status {status}: {errors.getvalue()}")
    return errors.getvalue().strip().splitlines()[-1] if status else None


def write_data(folder):
    """Write into `folder` a table of nodes, a table of edges with three descriptions, and 20 graphs in TU Dortmund's layout."""
    rng = np.random.default_rng(0)
    words = "\n".join(f"{node},{node % 4},{rng.random():.3f},{rng.random():.3f}" for node in range(60))
    (folder / "nodes.csv").write_text(f"id,label,a,b\n{words}\n")
    lines = "\n".join(f"{src},{dst},{rng.random():.3f}" for src, dst in rng.integers(0, 60, (300, 2)))
    (folder / "edges.csv").write_text(f"src,dst,value\n{lines}\n")
    relation = 'relation = ["item", "has", "tag"]\nfile = "edges.csv"\nsrc = "src"\ndst = "dst"\n'
    nodes = '[nodes.item]\ntrain = 0.5\nval = 0.2\nfile = "nodes.csv"\nid = "id"\nlabel = "label"\nfeatures = ["a", "b"]\n[nodes.tag]\n'
    for name, line in {"graph": "", "weighted": 'weight = "value"\n', "features": 'features = ["value"]\n'}.items():
        head = 'target = "item"\n'
        (folder / f"{name}.toml").write_text(f"{head}{nodes}[[edges]]\n{relation}{line}")
    graphs = folder / "SET"
    graphs.mkdir()
    first = np.arange(1, 60, 3)                                # each graph is a path of three nodes
    edges = np.concatenate([np.stack([first, first + 1], 1), np.stack([first + 1, first + 2], 1)])
    for name, rows in {"A": edges, "graph_indicator": np.arange(60) // 3 + 1, "graph_labels": np.arange(20) % 2}.items():
        np.savetxt(graphs / f"SET_{name}.txt", rows, "%d", ", ")


def arguments(model, feature):
    """Return the list of arguments with which the training command trains `model` with `feature`, a key of `FEATURES`."""
    source = [*(RELATIONS if model in RELATIONAL or feature == "relations" else NODES)]
    if feature == "edge weights":
        source[1] = source[1].replace("graph.toml", "weighted.toml").replace("dst=dst", "dst=dst,weight=value")
    if feature == "edge features":
        source[1] = source[1].replace("graph.toml", "features.toml").replace("dst=dst", "dst=dst,edge_features=value")
    if feature == "links" and model in RELATIONAL:
        source += ["--link-relation", "item.has.tag", "--embedding", "4"]
    options = FEATURES[feature]
    if feature == "minibatches" and hasattr(MODELS.get(model), "powers"):
        options = options[:2]                                  # rows of propagated features are batched without sampling
    return ["--model", model, *LAYERS.get(model, ["--layers", "2"]), *source, *options]


def table(refusals=None):
    """Return the table in Markdown, a row per model and a column per feature; append the error messages of cells "no" to `refusals`.

    The data are written into the current folder.

    Parameters
    ----------
    refusals : list, optional
        The error messages of the cells "no" are appended.
    """
    lines = [f"| `--model` | {' | '.join(FEATURES)} |", "|---" * (len(FEATURES) + 1) + "|"]
    refusals = [] if refusals is None else refusals
    write_data(Path.cwd())
    for model in (*MODELS, *RELATIONAL):
        messages = [refusal(arguments(model, feature)) for feature in FEATURES]
        refusals += [f"{model}, {feature}: {text}" for feature, text in zip(FEATURES, messages, strict=True) if text]
        lines.append(f"| {model} | {' | '.join('no' if text else 'yes' for text in messages)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    refused = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(table(refused), end="")
        os.chdir("/")
    print(*refused, sep="\n", file=sys.stderr)
