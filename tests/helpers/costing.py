"""What tests of costs share: models, runs and dry runs of them, data that have a corner."""

import math

import numpy as np

from sarlite.data import format, load
from sarlite.train import costs, planning, run
from sarlite.train.config import resolve
from sarlite.train.costs import Setting
from sarlite.train.load import load as load_part
from sarlite.train.model import model_class
from sarlite.train.settings import graph_of, source_of
from tests.helpers.exchanges import on_hosts

MODELS = {
    "gcn": dict(model="gcn", input_dropout=0.0),
    "sage": dict(model="sage", layers=2, hidden=16),
    "max": dict(model="sage", layers=2, hidden=8, aggregator="max-pool", batch_norm=False),
    "gat": dict(model="gat", clip_norm=1.0, eval_every=2),
    "appnp": dict(model="appnp", hops=2, label_inputs=0.5),
    "sign": dict(model="sign", hops=2),
}
TYPED = "relational:nodes=300,edges=1500,classes=3,features=9,train=0.3"
RELATIONAL = {
    "rgcn": dict(model="rgcn", hidden=24, data=TYPED),
    "inside": dict(model="rgcn", hidden=2, embedding=40, layers=1, data=TYPED),
    "bases": dict(model="rgcn", hidden=8, n_bases=2, embedding=5, layers=3, eval_every=2, clip_norm=1.0, data=TYPED),
    "rgat": dict(model="rgat", hidden=8, heads=2, attention_dropout=0.3, optimizer="sgd", data=TYPED),
}
FEW = "sbm:nodes=60,degree=4,features=5,classes=2"
QUIET = dict(progress="none", threads=1, partition="random")
HOSTS = [(0, 1), (0, 0, 0), (0, 0, 1), (0, 1, 1, 0)]
LIMIT = [float("inf")]  # of the fixture `limited`
DENSE = dict(data="sbm:nodes=1200,degree=30,features=16", model="gat", layers=2, hidden=64, heads=4, epochs=1, prefetch=0)


def trained(comm, folder, **options):
    config = resolve({**QUIET, "ranks": comm.size, "run_dir": str(folder), **options})
    return run.train(comm, config)


def check_bytes(tmp_path, monkeypatch, n_ranks, mode, prefetch, hosts=None, **options):
    """A run sends, by phase, what a dry run of it has told; return that. All ranks are on one host, or on `hosts`."""
    hosts = hosts or [0] * n_ranks
    monkeypatch.setattr(planning, "SETTINGS", [Setting(mode)])
    options = {"data": "sbm:nodes=90,degree=5,features=9", "mode": mode, "prefetch": prefetch, **options}
    real = on_hosts(hosts, trained, tmp_path / "real", **options)[0]
    (told,) = on_hosts(hosts, trained, tmp_path / "dry", dry_run=True, **options)[0]["settings"]
    sent, said = ({k: n for k, n in found.items() if k != "setup" and n} for found in (real["sent_bytes"], told["run_sent_bytes"]))
    assert sent == said and (n_ranks == 1 or sum(sent.values()) > 0)
    assert prefetch or real["live_remote_buffers"] == math.ceil(told["remote_buffers"])
    assert not (tmp_path / "dry").exists()  # nothing was trained
    return said


def counted(comm, config, folder):
    """The `Model` and `Sizes` of a run, and its part."""
    cls = model_class(config.model)
    part = load_part(comm, source_of(config, cls, self_loops=True), graph_of(config), folder)
    return *costs.of_run(comm, config, cls, part, run._make_trainer), part


def few_labelled(path, nodes=120):
    """A data set of which message-flow graphs are a part, in scoring too."""
    dataset = load(f"sbm:nodes={nodes},degree=3,features=9")
    dataset.train, dataset.val, dataset.test = (np.arange(nodes) % 40 == k for k in (1, 3, 5))
    format.write(path, dataset)
    return str(path)


def weighted(path, n=90, n_pairs=400):
    """The spec of a symmetric archive whose edges have weights."""
    keys = np.unique(np.random.default_rng(0).integers(0, n * n, n_pairs))
    ends = np.concatenate([keys // n, keys % n]), np.concatenate([keys % n, keys // n])
    dst, src = np.divmod(np.unique(ends[0] * n + ends[1]), n)
    np.savez(path, adj_indptr=np.searchsorted(dst, np.arange(n + 1)), adj_indices=src, adj_shape=np.array([n, n]),
             adj_data=1.0 + (dst + src) % 3, labels=np.arange(n) % 3, attr_matrix=np.ones((n, 9)))
    return f"npz:{path},train=6,val=6"


def plan_facts(plan):
    def facts(step):
        return (step.source, step.target, step.n_rows, step.n_send, step.contiguous, isinstance(step.send_rows, slice), step.share,
                step.block and step.block.n_src)

    if plan.host is None:
        stages = [(stage.root, stage.block is None, stage.n_rows, len(range(*stage.needed.indices(stage.n_rows)))
                   if isinstance(stage.needed, slice) else len(stage.needed)) for stage in plan.stages]
    else:
        stages = [(*facts(step), step.filler) for step in (*plan.stages, *plan.backward_stages)]
    return plan.n_src, plan.local.n_src, [facts(step) for step in plan.steps], [facts(step) for step in plan.backward_steps], stages
