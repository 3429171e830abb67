"""The table of operations and layers: what each takes and gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sarlite.errors import SarliteError
from sarlite.oracle.dialects import OWN
from sarlite.oracle.layer_formulas import LAYERS
from sarlite.oracle.reference import Reference, words


def entry(name: str) -> dict[str, Any]:
    """Return what a reference takes and gives: arrays, parameters and outputs, attributes with their values.

    "arrays" and "parameters" are name to shape, in words as "n_src"; "outputs" name to what a row is; "attributes" name
    to the values it may have, or the one it has where nobody says another; "with" is what an attribute's other value
    adds: "weighted=True" to {name: shape}; "own_names" by dialect the names that a library has for attributes;
    "gradients" whether vjp is asked for.
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
                          for (layer, dialect), names in OWN.items() if layer == name.partition("-")[0]},
            "gradients": definition.has_vjp}


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield an entry as lines of text."""
    yield told["name"]
    for key in ("arrays", "parameters", "outputs", "attributes"):
        for name, value in told[key].items():
            text = _shape_text(value) if key in ("arrays", "parameters") else words(value)
            yield f"  {key[:-1]} {name}: {text}"
    for name, shapes in told["with"].items():
        yield f"  with {name}: " + ", ".join(f"{key} {_shape_text(shape)}" for key, shape in shapes.items())
    for dialect, names in told["own_names"].items():
        yield f"  in dialect {dialect} also: " + ", ".join(f"{theirs} ({ours})" for theirs, ours in names.items())


def _changes(name, choices, usual):
    for key, values in choices.items():
        for value in values[1:]:
            try:
                arrays, parameters = Reference(name, **{key: value}).shapes
            except SarliteError:
                continue  # it goes with other attributes
            more = {k: shape for k, shape in {**arrays, **parameters}.items() if usual.get(k) != shape}
            if more:
                yield f"{key}={value!r}", more


def _shape_text(shape):
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
