# %% [markdown]
# # Churn: from messy tables to reasons
#
# On some day a shop asks of each customer: will the customer leave? The tables have categories, dates and gaps, and the orders after
# that day know the answer. The commands of [the story](../story.md) work in a notebook, too: each is a function that returns 0.

# %%
import numpy as np
import pandas as pd

from sarlite.cli.data_command import main as data
from sarlite.cli.explain_command import main as explain
from sarlite.cli.predict_command import main as predict
from sarlite.cli.train_command import main as train

draw = np.random.default_rng(0)
n, day = 1200, pd.Timedelta(days=1)
asked = pd.DatetimeIndex(pd.Timestamp("2025-03-01") + np.sort(draw.integers(0, 240, n)) * day)
customers = pd.DataFrame({
    "customer": [f"c{number}" for number in range(n)], "asked": asked, "since": asked - draw.integers(60, 900, n) * day,
    "plan": draw.choice(["basic", "plus", "club"], n, p=[0.6, 0.3, 0.1]),
    "age": np.where(draw.random(n) < 0.1, np.nan, draw.integers(18, 80, n)),
})
who, carrier = np.repeat(np.arange(n), 4), draw.integers(0, 12, 4 * n)
late = np.maximum(0, draw.normal(np.where(carrier < 3, 4, 0), 1))                  # three of twelve carriers are slow
churn = draw.random(n) < 1 / (1 + np.exp(4.5 - 2 * np.bincount(who, late) / 4))
before = pd.DataFrame({"customer": who, "carrier": carrier, "late": late.round(1), "at": asked[who] - draw.integers(1, 60, 4 * n) * day})
stay = np.repeat(np.flatnonzero(~churn), 2)                                        # who stays orders again, and that is the answer
after = pd.DataFrame({"customer": stay, "carrier": draw.integers(0, 12, len(stay)), "late": -1.0,
                      "at": asked[stay] + draw.integers(1, 30, len(stay)) * day})
orders = pd.concat([before, after], ignore_index=True)
orders = orders.assign(customer="c" + orders["customer"].astype(str), carrier="x" + orders["carrier"].astype(str), order=orders.index)
orders["order"] = "o" + orders["order"].astype(str)
new = asked >= "2025-10-01"
customers["churn"] = np.where(new, "", np.where(churn, "leaves", "stays"))
customers["split"] = np.select([new, asked < "2025-08-01", asked < "2025-09-01"], ["none", "train", "val"], "test")
customers.to_csv("customers.csv", index=False)
orders.to_csv("orders.csv", index=False)
customers.head()

# %% [markdown]
# The time of a customer is the day of the question. The deliveries of orders that come later are not known; they are -1.

# %%
open("shop.toml", "w").write("""
target = "customer"
[nodes.customer]
file = "customers.csv"
id = "customer"
time = "asked"
label = "churn"
split = "split"
features = { since = "date", plan = "onehot", age = { transform = "standard", missing = "mean+indicator" } }
[nodes.order]
file = "orders.csv"
id = "order"
time = "at"
features = { late = "number" }
[nodes.carrier]
[[edges]]
relation = ["customer", "placed", "order"]
file = "orders.csv"
src = "customer"
dst = "order"
time = "at"
[[edges]]
relation = ["order", "came_by", "carrier"]
file = "orders.csv"
src = "order"
dst = "carrier"
time = "at"
""")
assert data(["convert", "tables:shop.toml", "shop"]) == 0

# %% [markdown]
# `--temporal latest` shows each customer the orders up to the day of the question. A full batch shows the later ones, too: its average
# precision is far higher, and no shop will see it.

# %%
common = ["--data", "shop", "--model", "rgcn", "--hidden", "16", "--embedding", "4", "--lr", "0.02", "--class-weights", "balanced",
          "--metric", "ap", "--positive", "leaves", "--threshold", "best-f1", "--progress", "none"]
assert train([*common, "--epochs", "20", "--run-dir", "leaky"]) == 0
assert train([*common, "--epochs", "6", "--temporal", "latest", "--batch-size", "100", "--fanouts", "6,6", "--run-dir", "run"]) == 0

# %%
curves = {run: pd.read_json(f"{run}/metrics.jsonl", lines=True).set_index("epoch")["val_ap"] for run in ("leaky", "run")}
axes = pd.DataFrame(curves).plot(figsize=(6, 3), ylabel="average precision, validation")
best = {run: curve.max() for run, curve in curves.items()}
print(best)
assert best["leaky"] > 1.4 * best["run"]

# %% [markdown]
# The customers of October have no label. Each is scored at the day of the question. Here the truth is known, as the tables are drawn.

# %%
customers["customer"][new].to_csv("new.csv", index=False, header=False)
assert predict(["--checkpoint", "run", "--nodes", "new.csv", "--out", "risk.csv", "--progress", "none"]) == 0
risk = pd.read_csv("risk.csv", index_col="id")
truth = pd.Series(churn, customers["customer"])[risk.index]
riskiest = risk["p_leaves"].nlargest(20).index
print(f"{truth.mean():.0%} of the new customers leave, and of the 20 riskiest {truth[riskiest].mean():.0%}")
assert truth[riskiest].mean() > 1.5 * truth.mean()

# %% [markdown]
# Why? The feature that matters is how late the customer's orders were.

# %%
pd.Series(riskiest[:2]).to_csv("top.csv", index=False, header=False)
assert explain(["--checkpoint", "run", "--nodes", "top.csv", "--out", "why.csv", "--steps", "16", "--progress", "none"]) == 0
why = pd.read_csv("why.csv").query("kind == 'feature' and method == 'occlusion'")
assert set(why.query("rank == 1")["name"]) == {"order.late"}
why.pivot(index="name", columns="node", values="attribution").round(2)
