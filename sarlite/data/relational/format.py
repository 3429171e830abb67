"""The native format of relational data sets: a folder for each node type and relation. See `data.format`."""

from pathlib import Path

import numpy as np

from sarlite.data import format, npyfile
from sarlite.data.dataset import EDGE_ARRAYS, NODE_ARRAYS
from sarlite.data.relational.dataset import Edges, Nodes, RelationalDataset
from sarlite.data.relational.divide import copy
from sarlite.data.relational.names import key, words
from sarlite.data.writer import META, Writer
from sarlite.errors import DataError, reading
from sarlite.progress import SILENT


class RelationalWriter(Writer):
    """A `Writer` of relational data sets, a table after the other."""

    def of(self, table):
        """Return what takes a table's arrays, by the names that `Dataset` gives them."""
        return _Table(self, table)

    def finish(self, facts):
        """Finish with the meta.json of `facts`, a `divide.Facts`."""
        super().finish(lambda records: _meta(facts, records))


class _Table:
    def __init__(self, writer, table):
        self.writer, self.table = writer, table

    def array(self, field, shape, dtype):
        return self.writer.array(f"{self.table.folder}/{self.table.names[field]}", shape, dtype)


def write(directory, dataset, *, names=None, overwrite=False, progress=SILENT):
    """Write a relational data set in the native format: whole or not at all.

    Parameters and errors are those of `data.format.write`; refused besides are edges to what is no node, and names of types and relations
    that make no file name.
    """
    dataset.check_edges()
    writer = RelationalWriter(directory, names=names, overwrite=overwrite)
    with progress.step(f"write {directory}", dataset.n_bytes) as step, writer as out:
        out.step = step
        copy(dataset, out)


def _meta(facts, records):
    """What meta.json holds; types and relations in the data set's order."""
    tables = {"nodes": {}, "edges": {}, "names": {}}
    for path, record in records.items():
        place, folder, name = path.split("/")
        tables[place].setdefault(folder, {})[name] = record
    nodes = {}
    for node_type, offsets in facts.offsets.items():
        name = key(node_type)
        nodes[name] = {"count": int(offsets[-1]), "offsets": [int(offset) for offset in offsets], "arrays": tables["nodes"].get(name, {})}
    nodes[key(facts.target)] |= {"classes": int(facts.n_classes), "task": facts.task}
    edges = {name: {"count": arrays["indices"]["shape"][0], "arrays": arrays} for name, arrays in tables["edges"].items()}
    return {"format": "sarlite graph", "schema": format.SCHEMA, "name": facts.name, "target": key(facts.target), "nodes": nodes,
            "edges": edges, "division": facts.division, "provenance": facts.provenance,
            **({"names": tables["names"]} if tables["names"] else {})}


def open(directory, *, verify=False):
    """Map a relational data set in the native format.

    Parameters, errors and notes are those of `data.format.open`.

    Returns
    -------
    RelationalDataset
    """
    with reading(directory):
        return _opened(Path(directory), verify)


def _opened(directory, verify):
    meta = format.read_meta(directory)
    if "target" not in meta:
        raise DataError(f"{directory / META}: target: none, so it is a graph of one kind, where one of several types is needed")
    (target,) = words(meta["target"], 1)
    about = {"source": str(directory), "directory": str(directory)}
    nodes = {}
    for name, told in meta["nodes"].items():
        (node_type,) = words(name, 1)
        kind = {"n_classes": told["classes"], "task": told["task"]} if node_type == target else {}
        nodes[node_type] = Nodes(node_type, told["count"], offsets=np.array(told["offsets"], np.int64), **kind, **about,
                                 **_arrays(directory / "nodes" / name, told, NODE_ARRAYS, verify))
        nodes[node_type].check_shapes()
    edges = {}
    for name, told in meta["edges"].items():
        source, _, to = relation = words(name, 3)
        arrays = _arrays(directory / "edges" / name, told, EDGE_ARRAYS, verify)
        made = edges[relation] = Edges(relation, nodes[source].n_nodes, **about, **arrays)
        made.check_shapes()
        for what, said, found in (("edges", told["count"], made.n_edges), ("destinations", nodes[to].n_nodes, made.n_nodes)):
            if said != found:
                raise DataError(f"{directory / META}: edges: {name}: {said} {what}, but the arrays have {found}")
    return RelationalDataset(nodes, edges, target, meta["name"], str(directory), meta["provenance"], str(directory), meta["division"])


def _arrays(folder, told, names, verify):
    arrays = {}
    for field, name in names.items():
        record = told["arrays"].get(name)
        if record is not None:
            path = folder / f"{name}.npy"
            arrays[field] = npyfile.open_map(path, record, field)
            if verify:
                npyfile.verify(path, record, field)
    return arrays
