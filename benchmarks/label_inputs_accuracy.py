"""Measure the effect of label inputs and of Correct and Smooth (C&S) on accuracy, and check that several ranks agree.

`labels`: GraphSAGE on a stochastic block model whose features say little, with few training nodes (8 %, as ogbn-products
has). The ways are the plain model, C&S on its output, label inputs (masked label prediction), and both. Seeds are
paired: a seed draws the data and the weights of every way.

`ranks`: GAT with C&S on one rank and on `--ranks` threads, on a real graph that is split 60/20/20 by seed.

Accuracy is that of the test nodes at the epoch of the best validation accuracy, with that epoch's parameters. C&S is
kept where the validation accuracy is not lower than before, as the training command does. The table says how often C&S
was not kept.
"""

import sys

import harness
import numpy as np

from sarlite import Graph, Solo, Tensor, Trainer, nn, optim
from sarlite.comm import threads
from sarlite.data import load
from sarlite.graph.correct_and_smooth import CorrectAndSmooth
from sarlite.models import GAT, SAGE
from sarlite.tape import no_grad, ops
from sarlite.tasks.node_task import NodeTask
from sarlite.tasks.shown_labels import LabelInputs
from sarlite.train.epochs import fit
from sarlite.train.loop import set_threads


def sage(n_in, n_out, args, rng):
    return SAGE(n_in, n_out, layers=args.layers, hidden=args.hidden, dropout=args.dropout, rng=rng)


def gat(n_in, n_out, args, rng):
    return GAT(n_in, n_out, layers=2, hidden=8, heads=4, dropout=0.3, input_dropout=0.0, attention_dropout=0.3, rng=rng)


def train(comm, data, args, make_model, label_share, seed, epochs, learning_rate):
    """Train a model, made by `make_model`, with a `label_share` of labels as inputs; return a dict of accuracies in percent.

    The accuracies are of validation and test, before and after Correct and Smooth.
    """
    set_threads(max(args.threads // comm.size, 1))
    graph = Graph.from_csr(data.indptr, data.indices)
    graph = graph.shard(comm, "metis") if comm.size > 1 else graph
    ids, rng = graph.node_ids, nn.Random(seed)
    x, labels, *splits = (array[ids] for array in (data.features, data.labels, data.train, data.val, data.test))
    model = make_model(x.shape[1] + (data.n_classes if label_share else 0), data.n_classes, args, rng)
    trainer = Trainer(graph, model, x, labels, *splits, optimizer=lambda flat: optim.Adam(flat, learning_rate), rng=rng,
                      task=NodeTask(label_inputs=LabelInputs(label_share, data.n_classes) if label_share else None))
    best = fit(trainer, epochs)
    model.load_state_dict(best.state)
    with no_grad():
        probabilities = ops.softmax(Tensor(trainer.predict())).data
    smooth = CorrectAndSmooth(correct_alpha=args.correct_alpha, smooth_alpha=args.smooth_alpha,
                              smooth_iterations=args.iterations,
                              correct_iterations=args.iterations)
    smoothed = smooth(graph, probabilities, labels, splits[0])
    (val, test), (val_after, test_after) = (accuracies(graph, scores, labels, splits[1:])
                                            for scores in (probabilities, smoothed))
    improves = val_after >= val
    return {"val": val, "test": test, "val_raw": val_after, "test_raw": test_after, "kept": bool(improves),
            "best_epoch": best.epoch,
            "val_after": val_after if improves else val, "test_after": test_after if improves else test}


def accuracies(graph, scores, labels, splits):
    """Return [percentage of rows, over all ranks, whose label has the highest score] for each mask of this rank's rows in `splits`."""
    hits = np.array([[np.count_nonzero(scores[rows].argmax(1) == labels[rows]), np.count_nonzero(rows)]
                     for rows in splits])
    hits = graph.comm.allreduce(hits)
    return [100 * float(right / n) for right, n in hits]


def labels_rows(args):
    rows = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        data = load(f"{args.data},seed={seed}")
        for way, share in (("plain", 0.0), ("label inputs", args.share)):
            scores = train(Solo(), data, args, sage, share, seed, args.epochs, args.rate)
            rows.append({"case": "labels", "way": way, "seed": seed, "ranks": 1, **scores})
            harness.note(f"seed {seed}, {way}: {scores['test']:.2f}, C&S {scores['test_after']:.2f}")
    return rows


def ranks_rows(args):
    rows = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        data = load(f"{args.pages},train=0.6,val=0.2,seed={seed}")
        for n in (1, args.ranks):
            how = (data, args, gat, 0.0, seed, args.pages_epochs, args.pages_rate)
            scores = train(Solo(), *how) if n == 1 else threads.run(n, train, *how)[0]
            rows.append({"case": "ranks", "way": "GAT", "seed": seed, "ranks": n, **scores})
            harness.note(f"seed {seed}, {n} ranks: {scores['test']:.2f}, C&S {scores['test_after']:.2f}")
    return rows


def table(rows, title, compared):
    """Print each seed's accuracies of two trainings; `compared` is (first's name, second's name, first's key for the difference)."""
    seeds = sorted({row["seed"] for row in rows})
    lines = [dict(zip(("seed", "one", "two"), (str(seed), *[row for row in rows if row["seed"] == seed])))
             for seed in seeds]
    mean = {name: {key: float(np.mean([line[name][key] for line in lines]))
                   for key in ("test", "test_after", "val", "val_after")}
            for name in ("one", "two")}
    columns = {"seed": lambda r: r["seed"]}
    for name, way in (("one", compared[0]), ("two", compared[1])):
        columns |= {f"{way}": lambda r, name=name: f"{r[name]['test']:.2f}",
                    f"{way}, C&S": lambda r, name=name: f"{r[name]['test_after']:.2f}",
                    f"{way}, validation, C&S": lambda r, name=name: f"{r[name]['val']:.2f} -> "
                                                                    f"{r[name]['val_after']:.2f}"}
    columns["difference"] = lambda r: f"{r['two']['test_after'] - r['one'][compared[2]]:+.2f}"
    harness.report(title, [*lines, {"seed": "mean", **mean}], columns)
    lost = [row for row in rows if not row["kept"]]
    print(f"C&S not kept, as validation was better before: {len(lost)} of {len(rows)}")


def main(argv=None):
    args = arguments().parse_args(argv)
    rows = []
    if "labels" in args.cases:
        rows += labels_rows(args)
        table(rows,
              f"{args.data}: GraphSAGE of {args.layers} layers of {args.hidden}, share {args.share}, {args.epochs} "
              "epochs; test "
              "accuracy, %; difference: label inputs with C&S to plain", ("plain", "label inputs", "test"))
    if "ranks" in args.cases:
        ranks = ranks_rows(args)
        table(ranks,
              f"{args.pages}: GAT, {args.pages_epochs} epochs; test accuracy, %; difference: with C&S, {args.ranks} "
              "ranks to "
              "one", ("1 rank", f"{args.ranks} ranks", "test_after"))
        rows += ranks
    if args.json:
        args.json.write_text(harness.json.dumps(rows, indent=1) + "\n")


def arguments():
    parser = harness.parser(__doc__)
    parser.add_argument("--cases", type=harness.words, default=["labels"], metavar="LIST", help="of labels, ranks")
    parser.add_argument("--data", default="sbm:homophily=0.5,noise=2,train=0.08",
                        help="a generated data set; a seed is added")
    parser.add_argument("--pages", default="npz:facebook_pages.npz",
                        help="a data set of npz; the split and a seed are added")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="paired seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.5, help="of the training nodes, that show their labels")
    parser.add_argument("--ranks", type=int, default=3, help="threads of this process")
    parser.add_argument("--threads", type=int, default=1, help="of all ranks together")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--pages-rate", type=float, default=0.01)
    parser.add_argument("--pages-epochs", type=int, default=40)
    parser.add_argument("--correct-alpha", type=float, default=CorrectAndSmooth.correct_alpha)
    parser.add_argument("--smooth-alpha", type=float, default=CorrectAndSmooth.smooth_alpha)
    parser.add_argument("--iterations", type=int, default=CorrectAndSmooth.correct_iterations)
    return parser


if __name__ == "__main__":
    sys.exit(main())
