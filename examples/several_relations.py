"""Papers, authors, institutions and fields: R-GCN on a generated graph of four node types and eight relations.

    python examples/several_relations.py                  two ranks as threads
    mpiexec -n 3 python examples/several_relations.py     three ranks of MPI

Papers alone have features and labels. The other types have learned rows, each owned by the rank that owns the node.
"""

import numpy as np

from sarlite import HeteroGraph, Trainer, nn, optim
from sarlite.comm import launch, threads
from sarlite.models import RGCN
from sarlite.structure.relational_generator import mag


def on_rank(comm):
    data = mag(nodes=1000, classes=4, features=16, noise=2.0)
    graph = HeteroGraph.from_edges(data.edges, data.n_nodes, comm=comm, mode="sar")
    papers, rng = graph.of(data.target), nn.Random(seed=0)
    ids = papers.node_ids
    model = RGCN({"paper": 16}, data.n_classes, papers, hidden=32, n_bases=3, rng=rng)
    trainer = Trainer(papers, model, {"paper": data.features["paper"][ids]}, data.labels[ids],
                      data.train[ids], data.val[ids], data.test[ids], optimizer=lambda flat: optim.Adam(flat, lr=0.02), rng=rng)
    for _ in range(20):
        loss = trainer.step()
    return loss, trainer.evaluate()["test_accuracy"], graph.evaluations, linear(data)


def linear(data):
    """Return the test accuracy of a linear model that predicts papers' labels from their features alone, by least squares."""
    x, of = data.features["paper"], np.eye(data.n_classes)[data.labels]
    weights = np.linalg.lstsq(x[data.train], of[data.train], rcond=None)[0]
    return float(((x @ weights).argmax(1) == data.labels)[data.test].mean())


def main():
    comm = launch.connect()
    loss, accuracy, evaluations, features_accuracy = on_rank(comm) if comm.size > 1 else threads.run(2, on_rank)[0]
    if comm.rank == 0:
        for evaluation in evaluations:
            print(f"{evaluation.relation[1]}: {evaluation.n_in} to {evaluation.n_out}, weight {evaluation.name}")
        print(f"loss {loss:.4f}, test accuracy {accuracy:.3f}; of features alone {features_accuracy:.3f}")
    assert accuracy > features_accuracy + 0.1


if __name__ == "__main__":
    main()
