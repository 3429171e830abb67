"""Test that each row of `REFUSED` refuses a run with its message, and that other runs pass."""

import re
from types import SimpleNamespace

import pytest

from sarlite.cli import config
from sarlite.cli.combinations import HIDDEN, REFUSED, Run, only_needed, refuse
from sarlite.comm import threads
from sarlite.errors import ConfigError, DataError, raise_together
from sarlite.models import GAT, GCN, RGCN, SAGE, SGC

BATCHES = {"batch_size": 8, "fanouts": [3, 3]}
RELATIONAL = {"cls": RGCN, "relational": True}
ROWS = {"cls": SGC, "relational": False}
GRAPHS = {"cls": GCN, "relational": False, "graphs": True}
VALUES = {"backward fetch": "fetch", "weight_decay_on first": "first", "columns": 2,
          "label_inputs": 0.5, "propagated": "folder", "embeddings": 1, "fanouts": [3, 3], "eval_fanouts": [3], "batch_size": 8,
          "batches": "global", "readout": "sum", "readout_width": 8, "numerics exact": "exact", "task link": "link",
          "relation_weights inside": "inside", "remote hec": "hec", "remote local": "local", "batches balanced": "balanced",
          "lr_scale sqrt": "sqrt", "lr_scale linear": "linear",
          "link_split": "edges.csv,time=since", "edge_labels": "edges.csv,labels=kind", "link_relation": "user.buys.item",
          "rows bfloat16": "bfloat16", "rows int8": "int8",
          "dtype float64": "float64", "temporal": "uniform", "temporal latest": "latest",
          "sampler labor": "labor", "sampler replace": "replace", "time_split": "1,2"}  # fmt: skip
"""Values of options, keyed by the names in `REFUSED`; other options have the value True."""


def named(option):
    """Return a dict with one option and its value, for a name in `REFUSED`."""
    return {option.partition(" ")[0]: VALUES.get(option, True)}


def case(option, other):
    """Return (options, other facts) of a run that has only the two parts of a row of `REFUSED`."""
    kinds = {
        "batches of a cache": ({**BATCHES, "remote": "hec"}, {}),
        "other layers": (BATCHES, {}),
        "model of whole degrees": ({"model": "gcn"}, {"cls": GCN, "relational": False}),
        "relational model, plain data": ({"model": "rgcn"}, {"cls": RGCN, "relational": False}),
        "plain model, relational data": ({"model": "gcn"}, {"cls": GCN, "relational": True}),
        "plain data": ({}, {"cls": SAGE, "relational": False}),
        "relational data": ({"model": "rgcn", **({"fanouts": [3]} if option == "batch_size" else {})}, RELATIONAL),
        "sampled rows without fan-outs": ({"model": "gcn"}, {"cls": GCN, "relational": False}),
        "model of propagated rows": ({"model": "sgc", "batch_size": 8}, ROWS),
        "minibatches without edges": ({"model": "sgc", "batch_size": 8}, ROWS),
        "model without edge features": ({"model": "sage"}, {"cls": SAGE, "relational": False}),
        "model without a first layer": ({"model": "m.py:M"}, {"cls": SimpleNamespace, "relational": False}),
        "largest of neighbours": ({"model": "sage", "aggregator": "max-pool"}, {"cls": SAGE, "relational": False}),
        "class of propagated rows": ({"model": "sgc"}, ROWS),
        "a set of graphs": ({"model": "gcn"}, GRAPHS),
        "no set of graphs": ({"model": "gcn"}, {"cls": GCN, "relational": False, "graphs": False}),
        "a set of graphs and propagated rows": ({"model": "sgc"}, {**GRAPHS, "cls": SGC}),
        "propagated rows": ({"model": "m.py:M"}, {"cls": GCN, "relational": False, "model": SimpleNamespace(powers=(0, 1))}),
        "nothing propagated": ({}, {"cls": SAGE, "relational": False, "model": SimpleNamespace()}),
        "file of links": ({"link_val": "val.csv"}, {}),
        "file of links, and a share": ({"link_val": "val.csv", "link_test": 0.1}, {}),
        "shares beside words": ({option: "edges.csv,labels=kind,split=part", "link_val": 0.1}, {}),
        "learned rows of several relations": ({"model": "rgcn", "decoder": "transe", "link_relation": "a.b.c,d.e.f"},
                                              RELATIONAL),
        "batches of relations": ({"model": "rgcn", "mfg": True}, RELATIONAL),
        "relations apart": ({"model": "rgcn", "backward": "fetch"}, RELATIONAL),
        "task link or --edge-labels": ({"edge_labels": "edges.csv,labels=kind"}, {}),
        "other task than classify": ({}, {"cls": SAGE, "relational": False, "task": "regress"}),
    }
    kinds |= {f"one layer, {name}": ({"model": "m.py:M", "layers": 1}, {"cls": SimpleNamespace(hidden_options=(name,))})
              for name in HIDDEN}
    options, rest = kinds.get(other) or ({**BATCHES} if other == "batch_size" else named(other), {})
    return ({} if option == "model" else named(option)) | options, rest


@pytest.mark.parametrize("option, other, message", REFUSED, ids=lambda value: str(value)[:30])
def test_each_row_refuses_a_run_in_its_words(option, other, message):
    options, rest = case(option, other)
    facts = Run({**config.resolve({}).values, **options}, **rest)
    words = re.split(r"\{\w+\}", message)
    with pytest.raises(ConfigError, match=".+".join(map(re.escape, words)).removeprefix(".+")) as refusal:
        refuse(facts)
    assert str(refusal.value).startswith("--") and "{" not in str(refusal.value)


def test_an_option_alone_is_let_through():
    defaults = config.resolve({}).values
    for option in {option for option, _, _ in REFUSED} - {"model", "link_relation"}:
        with_picks = {"fanouts": [3, 3]} if option == "batch_size" else {}
        refuse(Run({**defaults, "model": "gat", **named(option), **with_picks}, cls=GAT, relational=False, task="classify"))
        assert Run({**defaults, **named(option)}).has(option) and not Run(defaults).has(option), option


def test_what_means_nothing_is_forgotten_or_refused_where_it_was_given():
    before = {**config.resolve({}).values, "fanouts": [3], "remote": "hec", "hec_life": 3, "smooth_alpha": 0.5}
    values = only_needed(before, {})
    assert {values[name] for name in ("remote", "hec_life", "smooth_alpha")} == {None} and values["fanouts"] is None
    assert only_needed({**before, "batch_size": 4}, {})["hec_life"] == 3
    for option_name, words in (("hec_life", "file: hec_life has no effect without --batch-size"),
                         ("smooth_alpha", "file: smooth_alpha has no effect without --correct-and-smooth")):
        with pytest.raises(ConfigError, match=words):
            only_needed(before, {option_name: f"file: {option_name}"})
    with pytest.raises(ConfigError, match="--hec-life has no effect without --remote hec"):
        only_needed({**before, "batch_size": 4, "remote": "local"}, {"hec_life": "--hec-life"})


def test_a_decay_of_the_first_layer_means_nothing_without_a_decay(tmp_path):
    with pytest.raises(ConfigError, match="^--weight-decay-on first .* --weight-decay$"):
        config.parse(["--weight-decay-on", "first"])
    with pytest.raises(ConfigError, match="weight-decay-on first has no effect without --weight-decay$"):
        config.resolve({}, {"weight-decay-on": "first", "weight_decay": 0.0})
    assert config.parse(["--weight-decay-on", "all"]).training.weight_decay_on == "all"  # as an older run's config.toml has it
    assert config.parse(["--weight-decay-on", "first", "--weight-decay", "0.1"]).training.weight_decay_on == "first"
    before = {"weight_decay_on": "first", "weight_decay": 0.1}
    assert config.resolve({"resume": "a/c", "weight_decay": 0.0}, before=before).values["weight_decay_on"] is None


def test_an_argument_is_told_by_its_flag_on_every_rank():
    @config.naming_flags
    def action(comm, error):
        raise_together(comm, error if comm.rank == 1 else None)

    def told(comm, error):
        with pytest.raises(type(error)) as refusal:
            action(comm, error)
        return str(refusal.value)

    errors = {ConfigError("run_dir a is no run_dir", "run_dir"): "--run-dir a is no run_dir",
              DataError("data x: y", "data"): "--data x: y", ConfigError("data x: y"): "data x: y"}
    for error, words in errors.items():
        assert threads.run(2, told, error) == [f"rank 1: {words}", words]


@pytest.mark.parametrize("mode", ["auto", "cover", "host"])
def test_a_checkpoint_of_a_mode_that_is_no_more(mode):
    """The run continues if another mode is given; obsolete options with today's behaviour are ignored."""
    before = {"mode": mode, "halo": "fetch", "columns": 1, "hidden": 9}
    with pytest.raises(ConfigError, match=f"--resume a/c: .*--mode {mode}, .*--mode sar"):
        config.resolve({"resume": "a/c"}, before=before)
    options = config.resolve({"resume": "a/c", "mode": "oneshot"}, before=before)
    assert (options.schedule.mode, options.model.hidden) == ("oneshot", 9) and not {"halo", "columns"} & options.values.keys()
    assert config.resolve({"resume": "a/c"}, {"mode": "sa", "halo": "fetch", "columns": 1}, before).schedule.mode == "sa"
    for name, value in (("halo", "recompute"), ("columns", 2)):
        with pytest.raises(ConfigError, match=f"unknown option '{name}'"):
            config.resolve({}, {name: value})


def test_mode_auto_is_refused_with_the_page_that_helps_to_choose():
    with pytest.raises(ConfigError, match="--mode: 'auto' .*sar, .*docs/which-mode.md"):
        config.parse(["--mode", "auto"])
