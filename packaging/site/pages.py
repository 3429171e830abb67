"""Lay out the site's sources in a folder, so that no text stands twice: `make docs`.

    python packaging/site/pages.py FOLDER

docs/ is copied. The first page is README.md; the commands' page is what `--help` prints; a page of the reference lists the public names
of modules, whose docstrings Sphinx reads; a file out of docs/ that a page links to, as an example, is shown in a page of its own.
"""

import contextlib
import importlib
import inspect
import io
import os
import posixpath
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)(?=[)#])")
AT_TOP = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Pages outside docs/, and their places in the site."""
CONTENTS = {  # heading: pages
    "Start here": ["tutorial", "story", "install", "choosing", "pitfalls"],
    "How to": [f"how-to/{name}" for name in ("README", "string-ids", "relations", "links", "recommend", "new-nodes",
                                             "fraud", "time", "explain", "edge-labels", "own-message", "own-reducer",
                                             "own-mode", "own-model", "hosts", "memory", "resume", "search-options", "verify", "notebooks",
                                             "from-pyg", "from-dgl")],
    "Notebooks": ["notebooks/story", "notebooks/tables", "notebooks/ranks"],
    "Concepts": ["concepts", "glossary", "which-mode", "many-ranks", "schedules", "cost", "numerics", "narrow"],
    "Guides": ["tables", "transforms", "training", "links", "graph-tasks", "python", "interop", "oracle"],
    "Reference": ["reference/commands", "data", "reference/python", "promises", "stability", "changelog"],
    "Papers": ["sar-from-scratch", "architecture", "results", "time-to-accuracy", "results/sar/README", "results/mg-gcn/README",
               "results/oracle/dgl-max-isolated", "results/oracle/pyg-scatter-max"],
}  # fmt: skip
REFERENCE = {  # page: title, modules or names
    "graphs": ("Graphs", ["sarlite.Graph", "sarlite.graph.layer_graph.LayerGraph", "sarlite.GraphSet",
                          "sarlite.HeteroGraph", "sarlite.NodeType"]),
    "messages": ("Messages", ["sarlite.fn"]),
    "models": ("Models", ["sarlite.models"]),
    "nn": ("Layers and modules", ["sarlite.nn"]),
    "optim": ("Optimizers and schedules", ["sarlite.optim"]),
    "training": ("Training", ["sarlite.Trainer", "sarlite.train.step.TrainingStep", "sarlite.train.stopping.Best",
                              "sarlite.tasks.node_task.NodeTask", "sarlite.tasks.edge_task.EdgeTask",
                              "sarlite.tasks.link_task.LinkTask", "sarlite.tasks.graph_task.GraphTask",
                              "sarlite.tasks.task_losses.mean_over_rows", "sarlite.tasks.shown_labels.LabelInputs",
                              "sarlite.tasks.link_data.split_links", "sarlite.tasks.link_data.labelled_links",
                              "sarlite.tasks.link_data.Links", "sarlite.tasks.link_loader.LinkLoader",
                              *(f"sarlite.train.checkpoint.{name}" for name in
                                ("save", "load", "write", "read", "restore_state"))]),
    "minibatch": ("Minibatches", ["sarlite.minibatch", "sarlite.minibatch.batch.FullBatch"]),
    "data": ("Data sets", ["sarlite.data", "sarlite.data.spec.load_relational", "sarlite.data.format.open",
                           "sarlite.data.format.write", "sarlite.data.names.Names"]),
    "comm": ("Ranks", ["sarlite.comm", "sarlite.comm.threads.run", "sarlite.comm.launch.connect"]),
    "propagation": ("Propagation, Correct and Smooth", ["sarlite.graph.propagation", "sarlite.graph.correct_and_smooth"]),
    "interop": ("Other libraries", ["sarlite.interop"]),
    "tape": ("Tensors", ["sarlite.Tensor", "sarlite.no_grad", "sarlite.gradcheck", "sarlite.kernels.Buffers"]),
    "oracle": ("The oracle", ["sarlite.oracle"]),
    "errors": ("Errors", ["sarlite.errors"]),
}  # fmt: skip
COMMANDS = {"train": "sarlite.cli.train_command", "data": "sarlite.cli.data_command", "predict": "sarlite.predict",
            "explain": "sarlite.explain", "smooth": "sarlite.smooth", "estimate": "sarlite.estimate",
            "report": "sarlite.report", "sweep": "sarlite.sweep", "verify": "sarlite.verify", "info": "sarlite.info",
            "oracle": "sarlite.oracle.__main__"}  # fmt: skip


def main(folder):
    """Write the site's source pages into `folder`, in place of the pages of an earlier run."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    texts = {page: (ROOT / page).read_text() for page in pages()}
    linked = {path for page, text in texts.items() for path in targets(page, text).values() if place(path).startswith("source/")}
    linked |= {f"{path}/{inner}" for path in linked for inner in listed(path)}
    site_texts = {place(page): moved(page, text) for page, text in texts.items()} | {place(path): shown(path) for path in linked}
    site_texts["index.md"] += "".join(toctree(heading, names) for heading, names in CONTENTS.items())
    site_texts |= {f"reference/{page}.md": reference(*what) for page, what in REFERENCE.items()}
    site_texts["reference/python.md"] = "# Python\n\nEvery public name.\n" + toctree("", [f"/reference/{page}" for page in REFERENCE])
    site_texts["reference/commands.md"] = commands()
    for name, text in site_texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def pages():
    """Return the paths of all Markdown pages, relative to the checkout: README.md, CHANGELOG.md and the pages in docs/."""
    return [*AT_TOP, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]


def place(path):
    """Return the path of a page in the site for `path`, a file of the checkout."""
    if path in AT_TOP:
        return AT_TOP[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"


def targets(page, text):
    """Return {link in the page's text: path of the file in the checkout} for all links to files that exist."""
    paths = {link: posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) for link in LINK.findall(text)}
    return {link: path for link, path in paths.items() if (ROOT / path).exists()}


def moved(page, text):
    """Return the page's text with its links to files of the checkout replaced by links to pages of the site."""
    folder = posixpath.dirname(place(page)) or "."
    uris = {link: posixpath.relpath(place(path), folder) for link, path in targets(page, text).items()}
    return LINK.sub(lambda match: uris.get(match[0], match[0]), text)


def listed(path):
    """Return the sorted names of the files in the folder `path`; an empty list if `path` is a file."""
    return sorted(inner.name for inner in (ROOT / path).glob("*.*")) if (ROOT / path).is_dir() else []


def shown(path):
    """Return a Markdown page that shows a file outside docs/, or lists a folder; the site's search leaves such pages out."""
    if (ROOT / path).is_dir():
        body = "".join(f"- [{name}]({posixpath.basename(path)}/{name}.md)\n" for name in listed(path))
    else:
        language = {".py": "python", ".c": "c", ".yml": "yaml"}.get(Path(path).suffix, "text")
        body = f"````{language}\n{(ROOT / path).read_text()}\n````\n"
    return f"---\norphan: true\nnosearch: true\n---\n# {path}\n\n{body}"


def toctree(heading, names):
    """Return a table of contents in MyST Markdown, of the pages `names` below a heading, which shows only in the side bar."""
    return "\n```{toctree}\n:hidden:\n" + (f":caption: {heading}\n" if heading else "") + "\n".join(["", *names]) + "\n```\n"


def reference(title, names):
    """Return a page of the reference in Markdown: an autodoc directive for each of `names`, or each public name of a module."""
    text = f"# {title}\n"
    for name in names:
        value_of_name, is_module = resolved(name)
        text += f"\n## {name}\n" if len(names) > 1 else ""
        for inner, value in public(value_of_name).items() if is_module else [(name, value_of_name)]:
            kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
            members = "   :members:\n   :special-members: __call__\n" if kind == "class" else ""
            if not inspect.ismodule(value):
                text += f"\n```{{eval-rst}}\n.. auto{kind}:: {f'{name}.{inner}' if is_module else name}\n{members}```\n"
    return text


def resolved(name):
    """Return (the object with this dotted name, True if it is a module)."""
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.import_module(name), True
    module, _, inner = name.rpartition(".")
    value = getattr(importlib.import_module(module), inner)
    return value, inspect.ismodule(value)


def public(module):
    """Return {public name: value} of a module: the names in `__all__`, or else the names without "_" that the module defines."""
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__}  # fmt: skip


def commands():
    """Return the reference page of the commands in Markdown: the help text of each command and subcommand."""
    text = "# Commands\n\nEach command is also a script: `python -m sarlite.train` is `sarlite-train`.\n"
    for name, module in COMMANDS.items():
        said = help_of(module, flag="--help-all" if name == "train" else "--help")
        text += f"\n## sarlite-{name}\n\n```text\n{said}```\n"
        for word in re.findall(r"^    ([a-z]+)  ", said, re.M):
            text += f"\n### sarlite-{name} {word}\n\n```text\n{help_of(module, word)}```\n"
    return text


def help_of(module, *words, flag="--help"):
    """Return the text that the command in `module` prints for `flag`, after the name of a subcommand in `words`, if any."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        importlib.import_module(module).main([*words, flag])
    return out.getvalue()


if __name__ == "__main__":
    os.environ["COLUMNS"] = "110"
    main(Path(sys.argv[1]))
