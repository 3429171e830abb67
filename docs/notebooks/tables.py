# %% [markdown]
# # Tables to predictions
#
# Users follow each other. The segment of most users is known; the segment of the others is to be predicted.
# The tables are DataFrames, ids are words, and no file is written.

# %%
import numpy as np
import pandas as pd

from sarlite import Graph, Trainer, nn, optim
from sarlite.data import from_tables
from sarlite.models import SAGE

draw = np.random.default_rng(0)
n = 1000
names, group = np.array([f"user-{i}" for i in draw.permutation(n)]), draw.integers(0, 3, n)
src, dst = draw.integers(0, n, (2, 30_000))
keep = (group[src] == group[dst]) | (draw.random(30_000) < 0.1)
follows = pd.DataFrame({"source": names[src[keep]], "target": names[dst[keep]], "amount": draw.random(keep.sum())})
users = pd.DataFrame({"user": names, "age": draw.standard_normal(n), "income": group + 2 * draw.standard_normal(n),
                      "segment": np.array(["gold", "iron", "tin"])[group]})
users.loc[draw.random(n) < 0.2, "segment"] = None
users.head()

# %% [markdown]
# `from_tables` checks both tables and numbers the nodes. A missing label means that a node is in no split.
# The split of the others is drawn.

# %%
dataset = from_tables({
    "nodes": {"user": {"file": users, "id": "user", "labels": "segment"}},
    "edges": [{"file": follows, "relation": ["user", "follows", "user"], "src": "source", "dst": "target", "weight": "amount"}],
})
dataset.class_names, dataset.features.shape, [int(split.sum()) for split in (dataset.train, dataset.val, dataset.test)]

# %% [markdown]
# The graph has an edge a row of `follows`, and the weights. GraphSAGE averages the neighbours by these weights.

# %%
graph = Graph.from_csr(dataset.indptr, dataset.indices).with_edge_values(dataset.edge_weight)
rng, records = nn.Random(seed=0), []
trainer = Trainer(graph, SAGE(2, 3, layers=2, hidden=32, rng=rng), dataset.features, dataset.labels,
                  dataset.train, dataset.val, dataset.test, rng=rng, optimizer=lambda flat: optim.Adam(flat, 0.01))
best = trainer.fit(60, patience=20, callbacks=[records.append])
trainer.model.load_state_dict(best.state)
print(best.epoch, best.scores)

# %%
curve = pd.DataFrame(records).set_index("epoch")
axes = curve[["train_accuracy", "val_accuracy"]].plot(figsize=(6, 3), ylabel="accuracy")

# %% [markdown]
# Predictions are a row a user, in the order of `users`.

# %%
logits = trainer.predict()
share = np.exp(logits - logits.max(1, keepdims=True))
predicted = pd.DataFrame(share / share.sum(1, keepdims=True), columns=dataset.class_names, index=users["user"])
right = predicted.idxmax(axis=1).to_numpy() == np.array(dataset.class_names)[group]
unknown = users["segment"].isna().to_numpy()
assert right[unknown].mean() > 0.6
print(f"right for {right[unknown].mean():.0%} of the users whose segment nobody knew")
predicted[unknown].head().round(3)
