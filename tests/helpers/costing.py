"""What tests of costs share: models, runs and dry runs of them, data that have a corner."""

import math

import numpy as np

from sarlite.cli import run
from sarlite.cli.config import resolve
from sarlite.cli.settings import settings
from sarlite.comm import threads
from sarlite.data import format, load
from sarlite.train import part_sizes, planning
from sarlite.train.costs import Setting
from sarlite.train.load import load as load_part
from sarlite.train.planning import candidates

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
SBM = "sbm:nodes=90,degree=5,features=9"


def trained(comm, folder, **options):
    config = resolve({**QUIET, "ranks": comm.size, "run_dir": str(folder), **options})
    return run.train(comm, config)


def dry_run(tmp_path, n_ranks, **options):
    """What a dry run tells: its settings by name, and why others are left out."""
    found = threads.run(n_ranks, trained, tmp_path / "dry", dry_run=True, **{"data": SBM, **options})[0]
    assert not (tmp_path / "dry").exists()  # nothing was trained
    return {row["setting"]: row for row in found["settings"]}, found["left_out"]


def told(tmp_path, n_ranks, chosen, **options):
    """What a dry run would tell of these settings alone, by name."""
    def tell(comm):
        config = resolve({**QUIET, "ranks": comm.size, "data": SBM, **options, "mode": "sar", "dry_run": True})
        made, sizes, part = counted(comm, config, tmp_path, loops=config.self_loops)
        limit, asked = planning.limit_of(comm, part, None), candidates(sizes, chosen)
        rows, _ = planning.compare(comm, sizes, limit, asked)
        return {str(row.setting): planning.record(row, made) for row in rows}

    return threads.run(n_ranks, tell)[0]


def check_bytes(tmp_path, n_ranks, settings, **options):
    """Runs in these settings, or modes, send, by phase, what is told, and hold as many peers' rows; return what was told of the last."""
    options = {"data": SBM, **options}
    settings = [Setting(each) if isinstance(each, str) else each for each in settings]
    rows = told(tmp_path, n_ranks, settings, **options)
    for setting in settings:
        flags = {"mode": setting.mode, **dict(setting.options)}
        row, real = rows[str(setting)], threads.run(n_ranks, trained, tmp_path / str(setting), **{**options, **flags})[0]
        sent, said = ({k: n for k, n in found.items() if k != "setup" and n} for found in (real["sent_bytes"], row["run_sent_bytes"]))
        assert sent == said and (n_ranks == 1 or sum(sent.values()) > 0), (setting, sent, said)
        assert options["prefetch"] or real["live_remote_buffers"] == math.ceil(row["remote_buffers"]), setting
    return said


def counted(comm, config, folder, loops=True):
    """The `Settings` of a run, the `Sizes` of its part, and the part."""
    made = settings(config)
    source = made.source if loops is None else made.source._replace(self_loops=loops)
    part = load_part(comm, source, made.graph, folder)
    return made, part_sizes.of_run(comm, made, part, run.trainer_of), part


def few_labelled(path, nodes=120):
    """A data set of which message-flow graphs are a part, in scoring too."""
    dataset = load(f"sbm:nodes={nodes},degree=3,features=9")
    dataset.train, dataset.val, dataset.test = (np.arange(nodes) % 40 == k for k in (1, 3, 5))
    format.write(path, dataset)
    return str(path)


def directed(path, nodes=90):
    """A data set whose edges have no reverse: of each pair that from the lower node."""
    dataset = load(f"sbm:nodes={nodes},degree=8,features=9")
    dst = np.repeat(np.arange(nodes), np.diff(dataset.indptr))
    kept = dataset.indices < dst
    dataset.indices = np.ascontiguousarray(dataset.indices[kept])
    dataset.indptr = np.concatenate([[0], np.cumsum(np.bincount(dst[kept], minlength=nodes))])
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
