"""Public names are annotated with the types they take and return; mypy (`make lint`) checks the annotations."""

import functools
import importlib
import importlib.util
import inspect
import re
import typing
from pathlib import Path

import pytest

import sarlite
from sarlite import nn
from sarlite.tape import Tensor, ops

# Module to its names that must be annotated: functions, and classes with all their public methods and properties.
ANNOTATED = {
    "sarlite.errors": ("SarliteError", "ConfigError", "DataError", "ShapeError", "CheckpointError", "PeerError", "install",
                       "import_optional", "raise_together"),
    "sarlite.cli.info_command": ("collect", "text", "main"),
    "sarlite.profile": ("Profile", "Trace", "Span", "Counted", "Memory", "trim", "uncounted"),
    "sarlite.progress": ("Progress", "Step", "duration"),
    "sarlite.keys": ("splitmix64", "word", "key"),
    "sarlite.oracle.call": ("Unsupported", "CallFailure", "GuardedCase", "Worker", "laid_out", "outputs", "gradients", "raised_text",
                            "checked"),
    "sarlite.oracle.check": ("check",),
    "sarlite.oracle.certified": ("arithmetic", "ratios", "imprecise", "coarse"),
    "sarlite.oracle.diagnose": ("cause_of",),
    "sarlite.oracle.difference": ("Difference",),
    "sarlite.oracle.reference": ("Reference", "as_reference", "reference_label", "reference_of", "valid_case"),
    "sarlite.lazy": ("names",),
    "sarlite.oracle.sarcase": ("save", "load"),
    "sarlite.oracle.npy": ("plain_name", "write", "write_group", "write_json", "read", "read_result", "read_folder"),
    "sarlite.oracle.replay": ("replay", "summary"),
    "sarlite.oracle.levels": ("shapes", "not_exact", "above_bound", "repeat", "other_bits"),
    "sarlite.oracle.trial": ("Trial", "count_text", "trying"),
    "sarlite.oracle.external_program": ("ExternalProgram",),
    "sarlite.oracle.exported": ("export", "verify"),
    "sarlite.oracle.oracle_command": ("parser", "main", "references"),
    "sarlite.oracle.selfcheck": ("selfcheck",),
    "sarlite.oracle.plugin": ("sarlite_oracle", "pytest_addoption", "pytest_configure", "pytest_itemcollected"),
    "sarlite.oracle.part_files": ("folder_of", "write_parts", "read_results"),
    "sarlite.oracle.parts": ("RankPart", "Division", "owners"),
    "sarlite.oracle.rank_checks": ("each_rank", "check_ranks", "division_graphs"),
    "sarlite.oracle.finding": ("Finding",),
    "sarlite.oracle.check_report": ("Report", "OracleError"),
    "sarlite.minibatch": ("HEC", "GraphBatch", "GraphLoader", "NeighborLoader", "Batch", "Sampler"),
    "sarlite.minibatch.hec.row_table": ("RowTable",),
    "sarlite.minibatch.hec.sending": ("PaperPush", "DemandPush", "SendLists", "choose"),
    "sarlite.minibatch.hec.push": ("Pusher",),
    "sarlite.nn": tuple(nn.__all__),
    "sarlite.nn.activate": ("activate",),
    "sarlite.nn.norm": ("merge_moments", "batch_moments"),
    "sarlite.nn.random": ("splitmix64", "word"),
    "sarlite.optim": ("Optimizer", "SGD", "Adam", "constant", "cosine", "steps", "warmup", "schedule"),
    "sarlite.graph.propagation": ("Propagation",),
    "sarlite.graph.correct_and_smooth": ("CorrectAndSmooth", "check_probabilities"),
    "sarlite.graph.array_checks": ("check_array", "check_csr", "check_distinct", "check_edge_lists", "check_part_relations",
                                       "check_sources", "check_relation"),
    "sarlite.graph.build": ("build_from_edges", "build_from_csr", "build_from_scipy", "build_from_networkx",
                                "build_from_rows", "build_part", "sort_by_id"),
    "sarlite.data.tables.edge_lists": ("read_edges", "read_relations"),
    "sarlite.graph.frames": ("make_frame", "make_networkx", "tables_reader"),
    "sarlite.graph.shard": ("divide_graph", "divide_relations"),
    "sarlite.graph.layer_graph": ("LayerGraph",),
    "sarlite.graph.relation_fetches": ("build_relations", "make_fetch"),
    "sarlite.graph.weights": ("check_values", "row_sums", "check_range"),
    "sarlite.graph.hetero": ("HeteroGraph", "NodeType"),
    "sarlite.operators.fn": ("copy_src", "linear", "mul_edge", "attend", "attend_linear", "message"),
    "sarlite.graph.graph": ("Graph",),
    "sarlite.graph.graph_set": ("GraphSet",),
    "sarlite.train.loop": ("Trainer", "Best", "fit", "set_threads"),
    "sarlite.tasks.shown_labels": ("ShownLabels",),
    "sarlite.cli.smoothing_run": ("after_training",),
    "sarlite.train.step": ("TrainingStep",),
    "sarlite.tasks.task_losses": ("mean_over_rows",),
    "sarlite.data": ("Dataset", "Part", "divided", "load"),
    "sarlite.data.divided_data": ("together", "suits"),
    "sarlite.data.graph_tables": ("NodeTable", "EdgeTable"),
    "sarlite.data.part": ("NodePart", "EdgePart"),
    "sarlite.data.spec": ("native_directory", "source_path", "is_relational", "load_relational"),
    "sarlite.kernels.native": ("instruction_sets", "instruction_set", "set_instruction_set", "threads", "set_threads"),
    "sarlite.models": ("GCN", "GCNConv", "SAGE", "SAGEConv", "GAT", "GATConv", "RGCN", "RGCNConv", "RGAT", "RGATConv", "APPNP",
                       "SGC", "SIGN"),
    "sarlite.cli.config": ("parse", "resolve", "read_toml", "to_toml"),
    "sarlite.train.trace": ("check_path", "recording", "Spans", "write"),
    "sarlite.tape.apply": ("apply",),
    "sarlite.tape.tensor": ("Tensor", "as_array"),
    "sarlite.tape.gradcheck": ("gradcheck",),
    "sarlite.tape.ops": tuple(ops.__all__),
    "sarlite.tape.primitives": ("primitive",),
    "sarlite.tape.recording": ("Observer", "grad_enabled", "no_grad", "now", "observed", "retained", "set_grad", "watch_reads"),
    "sarlite.comm": ("Request", "Communicator", "Solo", "together", "agree", "wrap"),
    "sarlite.comm.protocol": ("Communicator", "Request"),
    "sarlite.comm.guard": ("guard",),
    "sarlite.comm.launch": ("launched_ranks", "connect", "default_threads", "rank_threads", "default_prefetch"),
    "sarlite.comm.requests": ("Staged",),
    "sarlite.comm.threads": ("ThreadCommunicator", "run"),
}


ROOT = Path(__file__).parents[3]


def documented():
    """Return {(module, name)} of the functions and classes that documentation and examples import or name with their module."""
    text = "\n".join(path.read_text() for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*.[mp][dy]"))
    text += (ROOT / "README.md").read_text()
    documented_names = {(module, name) for module, names in re.findall(r"^ *from (sarlite[\w.]*) import ([\w, ]+)", text, re.M)
                        for name in re.findall(r"\w+", names.partition(" as ")[0])}
    documented_names |= {named.rpartition(".")[::2] for named in re.findall(r"`(sarlite(?:\.\w+)+)", text)}
    importable = {place for place in documented_names if "interop.torch" not in ".".join(place) or importlib.util.find_spec("torch")}
    things = {place: getattr(importlib.import_module(place[0]), place[1], None) for place in importable}
    return {place for place, thing in things.items() if inspect.isfunction(thing) or inspect.isclass(thing)}


def functions(thing, name):
    """Yield (name, function) of a function, or of a class's own public methods, operators and properties."""
    if not inspect.isclass(thing):
        yield name, inspect.unwrap(thing)
        return
    for key, value in vars(thing).items():
        if isinstance(value, (property, functools.cached_property)):
            value = value.fget if isinstance(value, property) else value.func
        value = getattr(value, "__func__", value)
        dunder = key.startswith("__") and key.endswith("__")
        is_function = inspect.isfunction(value) and value.__module__ not in ("typing", "collections")
        written = is_function and not inspect.unwrap(value).__code__.co_filename.startswith("<")
        if written and (dunder or not key.startswith("_")):
            yield f"{name}.{key}", inspect.unwrap(value)


def unannotated(function):
    """Return the parameters without annotation, `self` and `cls` aside, and "return"."""
    signature = inspect.signature(function)
    missing = [name for k, (name, parameter) in enumerate(signature.parameters.items())
               if parameter.annotation is parameter.empty and not (k == 0 and name in ("self", "cls"))]
    return missing + (["return"] if signature.return_annotation is signature.empty else [])


PUBLIC = {(module, name) for module, names in ANNOTATED.items() for name in names} | documented()


@pytest.mark.parametrize("module, name", sorted(PUBLIC))
def test_public_names_are_annotated(module, name):
    public = dict(functions(getattr(importlib.import_module(module), name), name))
    assert {key: missing for key, function in public.items() if (missing := unannotated(function))} == {}
    for function in public.values():
        names = {"Graph": sarlite.Graph, "HeteroGraph": sarlite.HeteroGraph}
        typing.get_type_hints(function, localns=names)  # every name in them is defined


def test_methods_take_what_the_operations_take():
    """A method of Tensor and the operation of the same name have the same parameters and defaults."""
    methods = [name for name in ops.__all__ if name in vars(Tensor)]
    assert {"astype", "max", "relu", "transpose", "var"} <= {*methods}
    for name in methods:
        parameters, expected = (list(inspect.signature(f).parameters.values())[1:] for f in (vars(Tensor)[name], getattr(ops, name)))
        assert [(p.name, p.kind, p.default) for p in parameters] == [(p.name, p.kind, p.default) for p in expected], name


def test_the_check_itself():
    class Some:
        def bare(self, x, y: int = 0):
            return x

        def whole(self, x: int) -> int:
            return x

        @property
        def size(self):
            return 0

        @classmethod
        def made(cls, *args: int, **kwargs) -> "Some":
            return cls()

        def _hidden(self, x):
            return x

        def __len__(self):
            return 0

    missing = {name: unannotated(function) for name, function in functions(Some, "Some")}
    assert missing == {"Some.bare": ["x", "return"], "Some.whole": [], "Some.size": ["return"], "Some.made": ["kwargs"],
                       "Some.__len__": ["return"]}
