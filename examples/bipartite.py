"""Users and items: a bipartite graph, whole and divided among three ranks, with the same gradients.

    python examples/bipartite.py                  three ranks as threads
    mpiexec -n 3 python examples/bipartite.py     three ranks of MPI

The model classifies users by the items that they have rated. Items gather from their users, then users from their items, once as a mean
and once with attention. Each side has rows, ids and a division of its own.
"""

import numpy as np

from sarlite import Graph, Tensor, nn, optim
from sarlite.comm import launch, threads
from sarlite.models import GATConv, SAGEConv
from sarlite.tape import ops

N_USERS, N_ITEMS, N_TASTES, N_FEATURES, HIDDEN = 300, 120, 3, 8, 16


class Model(nn.Module):
    """Two GraphSAGE layers, users to items and items to users, and an attention layer that classifies the users."""

    def __init__(self, rng):
        self.items = SAGEConv(N_FEATURES, HIDDEN, rng=rng, dtype=np.float64)
        self.users = SAGEConv(N_FEATURES, HIDDEN, rng=rng, dtype=np.float64)
        self.attend = GATConv(HIDDEN, N_TASTES, 2, concat=False, residual=True, rng=rng, dtype=np.float64)

    def __call__(self, to_items, to_users, users, items):
        items_h = self.items(to_items, (users, items)).relu()
        users_h = self.users(to_users, (items, users)).relu()
        return self.attend(to_users, (items_h, users_h))


def problem():
    """Return (graph to items, graph to users, users' features, items' features, users' tastes) of generated ratings.

    Most ratings of a user go to items of the user's taste. The features are almost noise.
    """
    rng = np.random.default_rng(0)
    tastes, genres = rng.integers(0, N_TASTES, N_USERS), rng.integers(0, N_TASTES, N_ITEMS)
    user, item = rng.integers(0, N_USERS, 12000), rng.integers(0, N_ITEMS, 12000)
    keep = (tastes[user] == genres[item]) | (rng.random(12000) < 0.15)
    features = [rng.standard_normal((n, N_FEATURES)) for n in (N_USERS, N_ITEMS)]
    features[1][:, :N_TASTES] += np.eye(N_TASTES)[genres]
    to_users = Graph.from_edges(item[keep], user[keep], n_src=N_ITEMS, n_dst=N_USERS)
    to_items = Graph.from_edges(user[keep], item[keep], n_src=N_USERS, n_dst=N_ITEMS)
    return to_items, to_users, *features, tastes


def divided(comm, to_items, to_users, users, items, tastes):
    """Return this rank's part of both graphs, both features and the tastes; METIS divides users and items together."""
    to_users = to_users.shard(comm, "metis", mode="sar")
    parts = np.empty(N_USERS, np.int64), np.empty(N_ITEMS, np.int64)
    for rank, ids in enumerate(comm.allgather((to_users.dst_ids, to_users.src_ids))):
        for part, rank_ids in zip(parts, ids):
            part[rank_ids] = rank
    to_items = to_items.shard(comm, parts[1], src_parts=parts[0], mode="sar")
    return to_items, to_users, users[to_users.dst_ids], items[to_users.src_ids], tastes[to_users.dst_ids]


def step(model, flat, to_items, to_users, users, items, tastes):
    """Return the loss over all ranks, and write the gradient over all ranks into `flat`, the model's parameters as one array."""
    flat.zero_grad()
    loss = ops.cross_entropy(model(to_items, to_users, Tensor(users), Tensor(items)), tastes, count=N_USERS)
    loss.backward()
    to_users.comm.allreduce(flat.grad)
    return to_users.comm.allreduce(np.array([loss.item()]))[0]


def on_rank(comm):
    whole, gradients, losses = problem(), [], []
    for data in (whole, divided(comm, *whole)):
        model = Model(nn.Random(seed=0))
        flat = nn.flatten(model)
        optimizer = optim.Adam(flat, lr=0.02)
        step(model, flat, *data)
        gradients.append(flat.grad.copy())
        for _ in range(30):
            loss = step(model, flat, *data)
            optimizer.step()
        losses.append(loss)
    return np.linalg.norm(gradients[1] - gradients[0]) / np.linalg.norm(gradients[0]), losses


def main():
    comm = launch.connect()
    error, losses = on_rank(comm) if comm.size > 1 else threads.run(3, on_rank)[0]
    if comm.rank == 0:
        print(f"gradients of one rank and of {max(comm.size, 3)}: relative difference {error:.1e}; loss after 30 steps {losses[1]:.4f}")
    assert error < 1e-12 and abs(losses[1] - losses[0]) < 1e-9 and losses[1] < 0.1


if __name__ == "__main__":
    main()
