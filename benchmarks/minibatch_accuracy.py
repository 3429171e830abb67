"""Measure the accuracy of minibatches on one rank and on several ranks, for each handling of remote neighbours.

GraphSAGE on a stochastic block model in which a node's own features and the edges of one part say little. The ways are
full batch, one rank's minibatches, and minibatches on `--ranks` threads with `exact`, `hec` and `local` on METIS and on
random parts. Seeds are paired: a seed draws the data, the parts, the weights and the batches of every way.

All ways take the same steps with the same batch of all ranks and the same learning rate, which `--choose` tries on one
rank. Full batch takes as many steps, and in another way as many epochs. Accuracy is that of the test nodes at the epoch
of the best validation accuracy; evaluation is exact. "epochs" is the paper's convergence: the first epoch whose test
accuracy is within 1 point of the seed's target, the accuracy of one rank's minibatches. `local` leaves out edges between
parts and must be clearly worse, or the data cannot tell anything.
"""

import sys
from typing import NamedTuple

import harness
import numpy as np

from sarlite import Graph, nn, optim
from sarlite.comm import threads
from sarlite.data import load
from sarlite.minibatch import NeighborLoader
from sarlite.models import SAGE
from sarlite.structure.partition import partition
from sarlite.train.loop import Best, Trainer, set_threads

LAYERS, RATES = 3, (0.01, 0.03, 0.05, 0.08, 0.1, 0.2)


class Way(NamedTuple):
    """Configuration of a training: number of ranks, partition, and how minibatches treat peers' nodes (`remote`; None: full batch)."""

    name: str
    ranks: int = 1
    parts: str = "one"
    remote: str | None = None  # None: full batch

    def __str__(self):
        return self.name if self.ranks == 1 else f"{self.name}, {self.parts} parts"


FULL, EPOCHS, ONE = Way("full batch"), Way("full batch, a step an epoch"), Way("minibatches", remote="exact")


def ways(args):
    several = [Way(remote, args.ranks, parts, remote) for remote in args.remotes for parts in args.parts]
    one_step = load(args.data).train.sum() <= args.batch_size  # with full batches, an epoch is a step
    return [FULL, *([] if one_step else [EPOCHS]), ONE, *(several if args.ranks > 1 else [])]


def train(comm, way: Way, data, parts, args, seed, learning_rate):
    """Train the configuration `way` on `data` divided by `parts`; return (scores of each epoch, cache hit rates by layer)."""
    set_threads(max(args.threads // way.ranks, 1))
    graph = Graph.from_csr(data.indptr, data.indices)
    if comm is not None:
        graph = graph.shard(comm, parts)
    ids, rng = graph.node_ids, nn.Random(seed)
    x, labels, train, val, test = (array[ids]
                                   for array in (data.features, data.labels, data.train, data.val, data.test))
    model = SAGE(x.shape[1], data.n_classes, layers=LAYERS, hidden=args.hidden, dropout=args.dropout, rng=rng)
    steps = 1 if way == EPOCHS else -(-int(data.train.sum()) // args.batch_size)
    trained_on = graph, model, x, labels, train, val, test
    options = {"rng": rng, "optimizer": lambda flat: optim.Adam(flat, learning_rate)}
    loader = None
    if way.remote is not None:
        near = {} if comm is None else {"remote": remote(way, args)}
        loader = NeighborLoader(graph, x, labels, train, fanouts=args.fanouts, batch_size=args.batch_size, seed=seed,
                                **near)
    trainer = Trainer(*trained_on, **options, batches=loader)
    scores = []
    for epoch in range(args.epochs):
        loss = trainer.epoch(epoch) if way.remote else float(np.mean([trainer.step() for _ in range(steps)]))
        scores.append({"loss": loss, **trainer.evaluate()})
    return scores, hit_rates(loader)


def remote(way, args):
    if way.remote != "hec":
        return way.remote
    from sarlite.minibatch import HEC

    return HEC(life=args.life, limit=args.limit, delay=args.delay, on_miss=args.on_miss, push=args.push)


def hit_rates(loader):
    counts = getattr(loader, "counts", {})
    return [hits / max(lookups, 1) for hits, lookups in zip(counts.get("hits", ()), counts.get("lookups", ()))]


def measure(args, way: Way, seed, learning_rate):
    """Train the configuration `way` with one seed and one learning rate; return the result row."""
    data = load(f"{args.data},seed={seed}")
    if way.ranks == 1:
        scores, rates = train(None, way, data, None, args, seed, learning_rate)
    else:
        parts = partition(data.indptr, data.indices, way.ranks, way.parts, train_mask=data.train, seed=seed)
        scores, rates = threads.run(way.ranks, train, way, data, parts, args, seed, learning_rate)[0]
    best = Best()
    for epoch, epoch_scores in enumerate(scores):
        best.update(epoch + 1, epoch_scores, nn.Module())
    accuracy = 100 * best.scores["test_accuracy"]
    harness.note(f"{way}, seed {seed}: {accuracy:.2f} at epoch {best.epoch}"
                 + (f", hits {np.round(rates, 2)}" if rates else ""))
    return {"way": str(way), "ranks": way.ranks, "parts": way.parts, "remote": way.remote, "seed": seed, "rate": learning_rate,
            "accuracy": accuracy, "validation": 100 * best.scores["val_accuracy"], "best_epoch": best.epoch,
            "hit_rates": rates,
            "curve": [100 * epoch_scores["test_accuracy"] for epoch_scores in scores]}


def until(curve, target):
    """Return the first epoch, counted from 1, whose accuracy in `curve` (%) exceeds `target` minus 1; None if there is none."""
    return next((epoch + 1 for epoch, accuracy in enumerate(curve) if accuracy > target - 1), None)


def summary(rows):
    """Return a result row per configuration: mean accuracy, and its difference to full-batch training and to one rank's minibatches.

    The baselines are full-batch training and minibatches on a single rank.

    The differences are paired by seed.
    """
    by_way: dict[str, list] = {}
    for row in rows:
        by_way.setdefault(row["way"], []).append(row)
    target = {row["seed"]: row["accuracy"] for row in by_way[str(ONE)]}
    full = {row["seed"]: row["accuracy"] for row in by_way.get(str(FULL), [])}
    summaries = []
    for way, several in by_way.items():
        epochs = [until(row["curve"], target[row["seed"]]) for row in several]
        summaries.append({"way": way, "seeds": len(several), "accuracy": _mean([row["accuracy"] for row in several]),
                          "to full": _mean([row["accuracy"] - full[row["seed"]] for row in several]) if full else None,
                          "to one": _mean([row["accuracy"] - target[row["seed"]] for row in several]),
                          "epochs": [epoch if epoch is not None else "never" for epoch in epochs],
                          "hits": np.mean([row["hit_rates"] for row in several], axis=0).tolist()
                          if several[0]["hit_rates"] else None})
    return summaries


def _mean(values):
    """Return (mean, standard error of the mean) of the numbers `values`."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(np.mean(values)), float(error)


def _shown(key):
    return lambda r: "{:.2f} +- {:.2f}".format(*r[key]) if r[key] else None


COLUMNS = {
    "way": lambda r: r["way"],
    "seeds": lambda r: r["seeds"],
    "test accuracy, %": _shown("accuracy"),
    "to full batch": _shown("to full"),
    "to one rank": _shown("to one"),
    "epochs": lambda r: " ".join(map(str, r["epochs"])),
    "hit rates, %": lambda r: " ".join(f"{100 * hit:.0f}" for hit in r["hits"]) if r["hits"] else None,
}


def choose(args):
    """Print the mean validation accuracy of minibatches on one rank for each of `args.rates`, to choose a learning rate."""
    rows = [measure(args, ONE, seed, rate) for rate in args.rates for seed in range(args.seeds)]
    candidates = [{"rate": rate, "validation": _mean([row["validation"] for row in rows if row["rate"] == rate]),
                   "test": _mean([row["accuracy"] for row in rows if row["rate"] == rate]),
                   "best_epoch": float(np.mean([row["best_epoch"] for row in rows if row["rate"] == rate]))}
                  for rate in args.rates]
    columns = {"rate": lambda r: r["rate"], "validation, %": _shown("validation"), "test, %": _shown("test"),
               "best epoch": lambda r: r["best_epoch"]}
    harness.report("Learning rates on one rank", candidates, columns, args.json)


def main(argv=None):
    args = arguments().parse_args(argv)
    if args.choose:
        return choose(args)
    rows, chosen = [], ways(args)
    for seed in range(args.seeds):
        rows += [measure(args, way, seed, args.rate) for way in chosen]
        if args.json:
            args.json.write_text(harness.json.dumps(rows, indent=1) + "\n")
    title = (f"{args.data}: GraphSAGE of {LAYERS} layers of {args.hidden}, fan-outs "
             f"{','.join(map(str, args.fanouts))}, "
             f"{args.batch_size} seeds a step of all ranks, learning rate {args.rate}, {args.epochs} epochs")
    harness.report(title, summary(rows), COLUMNS)
    return None


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--data", default="sbm:homophily=0.5,noise=2", help="a generated data set; a seed is added")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="paired seeds: 0 .. N - 1")
    parser.add_argument("--ranks", type=int, default=4,
                        help="threads of this process; 1 leaves out all but full batch and one rank")
    parser.add_argument("--remotes", type=harness.words, default=["exact", "hec", "local"], metavar="LIST")
    parser.add_argument("--parts", type=harness.words, default=["metis", "random"], metavar="LIST")
    parser.add_argument("--fanouts", type=harness.numbers, default=[5, 10, 15], metavar="LIST")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=0.08, help="learning rate")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=2, help="of all ranks together")
    parser.add_argument("--choose", action="store_true", help="try the learning rates of --rates on one rank instead")
    parser.add_argument("--rates", type=lambda text: [float(item) for item in text.split(",")], default=RATES,
                        metavar="LIST")
    for name, default in (("life", 2), ("limit", 2000), ("delay", 1)):
        parser.add_argument(f"--{name}", type=int, default=default, help="of hec")
    parser.add_argument("--on-miss", default="drop", help="of hec")
    parser.add_argument("--push", default="paper", help="of hec: paper or demand")
    return parser


if __name__ == "__main__":
    sys.exit(main())
