"""A relational data set read in bounded memory, relation by relation: edges through external sorts, into files that are mapped."""

from pathlib import Path

import numpy as np

from sarlite.data import budget, mag
from sarlite.data.dataset import SPLITS
from sarlite.data.divide import counts_up
from sarlite.data.external import Sorter, packed
from sarlite.data.names import listed
from sarlite.data.ogb import csv_pieces
from sarlite.data.relational.dataset import Edges, Nodes, RelationalDataset
from sarlite.data.relational.names import key
from sarlite.data.spool import Spool
from sarlite.data.streamed import made, merged, spooled_labels
from sarlite.graph.edges import index_dtype

_SPLIT_BYTES = 4  # a node of the target: three masks, and where two of them overlap


def read(form, path, folder, n_bytes, *, classes=None, reverses=True, names=False, tell=lambda text: None, **about):
    """Return the RelationalDataset that `RelationalDataset.of` makes of what a form's reader gives, but mapped from files in `folder`.

    Parameters
    ----------
    form : {"mag"}
    path, classes, reverses, names
        As for `mag.read`.
    folder : path
        Private, the caller's to remove; it takes about as much as the data set, and 12 bytes an edge of the largest relation, 24 with its
        reverse.
    n_bytes : int
        Of memory for the sorts of a relation and its reverse, and for the splits.
    tell : callable
        tell(text) is called as each relation begins.
    **about
        name, source and provenance of the data set.

    Raises
    ------
    DataError, ConfigError
        As `mag.read`; where the splits do not fit.
    """
    stored, folder = FORMS[form](path, reverses, names), Path(folder)
    budget.check(_SPLIT_BYTES * stored.n_nodes[stored.target], n_bytes, f"a split of {stored.n_nodes[stored.target]:,} nodes")
    forward, back = {}, {}
    for number, (relation, reverse) in enumerate(stored.relations.items()):
        tell(".".join(relation))
        for name, edges in _sorted(stored, relation, reverse, made(folder / str(number)), n_bytes, about):
            (forward if name == relation else back)[name] = edges
    tell("read the nodes")
    features = {name: Spool.of(folder / f"features.{number}", csv_pieces(file, "features", np.float32, n_rows=stored.n_nodes[name]))
                for number, (name, file) in enumerate(stored.features.items())}
    n, source = stored.n_nodes[stored.target], about["source"]
    pieces = csv_pieces(stored.labels, "labels", np.float64, n_rows=n, columns=1)
    labels, n_classes = spooled_labels(pieces, stored.labels, folder, classes, None)
    rows = {"labels": labels, **dict(zip(SPLITS, stored.split())), "n_classes": n_classes}
    nodes = {name: Nodes(name, n, features=features.get(name), source=source, **(rows if name == stored.target else {}))
             for name, n in stored.n_nodes.items()}
    return RelationalDataset(nodes, {**forward, **back}, stored.target, **about)


def _sorted(stored, relation, reverse, folder, n_bytes, about):
    """Yield a relation and its reverse, where it has one, and the edges of each: sorted side by side, each in its share of the memory."""
    directions = {relation: False} if reverse is None else {relation: False, reverse: True}
    ids = index_dtype(stored.n_edges(relation))
    folders = [made(folder / str(turned)) for turned in directions.values()]
    sorters = [Sorter(where, n_bytes // len(folders), edge_ids=(ids, ())) for where in folders]
    first = 0
    for src, dst in stored.edges(relation):
        for turned, sorter in zip(directions.values(), sorters):
            keys = packed(src, dst) if turned else packed(dst, src)
            sorter.add(keys, edge_ids=np.arange(first, first + src.size, dtype=ids))
        first += src.size
    while sorters:
        (name, _), where = directions.popitem(), folders.pop()
        n_sources, n_rows = stored.n_nodes[name[0]], stored.n_nodes[name[2]]
        arrays = merged(sorters.pop(), n_rows, n_sources, where)
        if counts_up(arrays["edge_ids"]):
            del arrays["edge_ids"]
        yield name, Edges(name, n_sources, **arrays, source=about["source"])


def names_in(form, path, folder, n_bytes):
    """Return the mappings of the nodes' names that a form's folder has, as `names.arrays`, made in `folder`, within `n_bytes`.

    Raises
    ------
    DataError
        There are none, or some of a type that there is not; a node has none, a name is there twice, or two have one hash.
    """
    stored, found = FORMS[form](path, False, True), {}
    for name, file in stored.names.items():
        place = f"names/{key(name)}"
        mapping = listed(stored.names_of(name), file, Path(folder, place), n_bytes, first_line=2)
        found |= {f"{place}/{part}": array for part, array in mapping.items()}
    return found


FORMS = {"mag": mag.Folder}
