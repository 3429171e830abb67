"""ogbn-mag's folder read in pieces, relation by relation, in memory or within so many bytes."""

import numpy as np

from sarlite.data import mag, textfile
from sarlite.data.dataset import Dataset
from sarlite.data.folders import key
from sarlite.data.numbering import Numbering
from sarlite.data.ogb import csv_pieces
from sarlite.data.streams import both_ways, split_budget, spooled_labels
from sarlite.data.tables import SPLITS, NodeTable


def read(path, options, workspace, tell, about, drop_edge_values=False):
    """Return the Dataset of ogbn-mag's folder and the mappings of its nodes' names, as `streams.one_kind`.

    Raises
    ------
    DataError
        As `mag.read`; a node has no name, a name is there twice, or two have one hash.
    """
    stored, source = mag.Folder(path, options.get("reverses", True), options.get("names", False)), about["source"]
    batch, n = textfile.batch_within(workspace.n_bytes), stored.n_nodes[stored.target]
    split_budget(n, workspace)
    forward, back = [], []
    for number, (relation, reverse) in enumerate(stored.relations.items()):
        tell(".".join(relation))
        pieces = ((src, dst, {}) for src, dst in stored.edges(relation, batch))
        for edges in both_ways(pieces, relation, reverse, stored.n_nodes, stored.n_edges(relation),
                               workspace.within(str(number)), source):
            (forward if edges.relation == relation else back).append(edges)
    tell("read the nodes")
    features = {}
    for number, (name, file) in enumerate(stored.features.items()):
        pieces = csv_pieces(file, "features", np.float32, n_rows=stored.n_nodes[name], batch=batch)
        features[name] = workspace.array(f"features.{number}", pieces)
    pieces = csv_pieces(stored.labels, "labels", np.float64, n_rows=n, columns=1, batch=batch)
    labels, n_classes = spooled_labels(pieces, stored.labels, workspace, options.get("classes"), None)
    rows = {"labels": labels, **dict(zip(SPLITS, stored.split())), "n_classes": n_classes}
    nodes = [NodeTable(name, n, features.get(name), **(rows if name == stored.target else {}), source=source)
             for name, n in stored.n_nodes.items()]
    made = Dataset.of_tables(nodes, forward + back, stored.target, "mag", **about)
    mappings = (_mapping(stored, node_type, workspace) for node_type in stored.names)
    return made, {name: array for mapping in mappings for name, array in mapping.items()}


def _mapping(stored, node_type, workspace):
    file, place = stored.names[node_type], f"names/{key(node_type)}"
    numbering = Numbering(workspace.within(place), file)
    for _, names in stored.names_of(node_type, textfile.batch_within(workspace.n_bytes)[0]):
        numbering.list(names)
    numbering.finish(file, "line", 2)
    return {f"{place}/{part}": array for part, array in numbering.mapping.items()}
