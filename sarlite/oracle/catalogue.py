"""Descriptions of the operations and layers: their arrays, parameters, outputs and attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sarlite.errors import SarliteError
from sarlite.oracle.dialects import LIBRARY_NAMES
from sarlite.oracle.layer_formulas import LAYERS
from sarlite.oracle.reference import Reference, words


def entry(name: str) -> dict[str, Any]:
    """Return a dict, fit for JSON, that describes the operation or layer `name`: its arrays, parameters, outputs and attributes.

    The keys are
    - "arrays", "parameters": shapes by name, with "n_src" and so on for sizes of the graph;
    - "outputs": kind of the rows of each output;
    - "attributes": allowed values, the default first, or the default alone;
    - "with": further arrays and parameters that a value of an attribute adds, such as "weighted=True": {name: shape};
    - "own_names": a library's names of attributes, by dialect;
    - "gradients": True if gradients are checked.
    """
    reference = Reference(name)
    definition = reference.definition
    choices = {key: value for key, value in definition.attributes.items() if isinstance(value, tuple)}
    choices |= LAYERS[name].options if name in LAYERS else {}
    usual = reference.shapes
    return {"name": name, "arrays": usual[0], "parameters": usual[1], "outputs": dict(definition.outputs_by),
            "attributes": {key: choices.get(key, value) for key, value in reference.attributes.items()
                           if key not in ("each", "dialect")},
            "with": dict(_changes(name, choices, {**usual[0], **usual[1]})),
            "own_names": {dialect: {theirs: ours for theirs, (ours, _) in names.items()}
                          for (layer, dialect), names in LIBRARY_NAMES.items() if layer == name.partition("-")[0]},
            "gradients": definition.has_vjp}


def lines(description: Mapping[str, Any]) -> Iterator[str]:
    """Yield `description`, the dict that `entry` returns for an operation or layer, as lines of text without line ends."""
    yield description["name"]
    for key in ("arrays", "parameters", "outputs", "attributes"):
        for name, value in description[key].items():
            text = _shape_text(value) if key in ("arrays", "parameters") else words(value)
            yield f"  {key[:-1]} {name}: {text}"
    for name, shapes in description["with"].items():
        yield f"  with {name}: " + ", ".join(f"{key} {_shape_text(shape)}" for key, shape in shapes.items())
    for dialect, names in description["own_names"].items():
        yield f"  in dialect {dialect} also: " + ", ".join(f"{theirs} ({ours})" for theirs, ours in names.items())


def _changes(name, choices, usual):
    for key, values in choices.items():
        for value in values[1:]:
            try:
                arrays, parameters = Reference(name, **{key: value}).shapes
            except SarliteError:
                continue  # this value needs other attributes, too
            more = {k: shape for k, shape in {**arrays, **parameters}.items() if usual.get(k) != shape}
            if more:
                yield f"{key}={value!r}", more


def _shape_text(shape):
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
