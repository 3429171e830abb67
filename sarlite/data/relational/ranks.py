"""A relational data set made ready for the ranks of a run, as `data.ranks.divided` does it."""

import time

from sarlite.data import ranks
from sarlite.data.divide import record, stored_order
from sarlite.data.relational import format
from sarlite.data.relational.divide import (
    divide,
    joined,
    make_order,
    make_parts,
    reordered,
)
from sarlite.data.spec import load_relational


def _divide(dataset, n_parts, directory, wanted, progress, seconds):
    _, _, order, balance, seed = wanted
    method, kept = ranks.method_of(dataset, wanted), stored_order(dataset)
    order, begin = "stored" if order == kept else order, time.perf_counter()
    graph = joined(dataset) if "metis" in (method, order) else None
    with progress.step(f"divide into {n_parts} parts by {method}"):
        parts = make_parts(dataset, n_parts, method, balance=balance, seed=seed, graph=graph)
    seconds["partition"] = time.perf_counter() - begin
    with progress.step(f"order {order}"):
        nodes = make_order(dataset, order, seed=seed, graph=graph)
    del graph
    division = record(n_parts, method, kept if order == "stored" else order, seed, balance)
    with progress.step("write the parts", dataset.n_bytes) as step, format.RelationalWriter(directory, step=step) as out:
        divide(dataset, parts, n_parts, out, order=nodes, division=division)


KIND = ranks.Kind(load_relational, format.open, _divide, reordered)
"""What `data.ranks.divided` takes for relational data sets."""
