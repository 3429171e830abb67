"""`Reference`: one operation or layer with its attributes, its cases, exact results and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from sarlite.errors import ConfigError, SarliteError
from sarlite.oracle import layer_formulas, models, operations  # noqa: F401  registers them
from sarlite.oracle.case import Case
from sarlite.oracle.choices import among
from sarlite.oracle.definition import REFERENCES, Shapes
from sarlite.oracle.dialects import DIALECTS, by_our_names
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.expression import constant, evaluate, variable
from sarlite.oracle.formats import NARROW, dtype_of, rounded, summed
from sarlite.oracle.gradient import gradient
from sarlite.oracle.plain import Number
from sarlite.types import Array

Words = dict[str, list[str | int]]


class Reference:
    """An operation or a layer that results are compared with.

    Parameters
    ----------
    name : str
        Of REFERENCES, as "spmm".
    dialect : "paper", "dgl" or "pyg"
    state : dict of str to array, optional
        Parameters; without, each case gets its own.
    **attributes
        As reduce="mean"; of a library's layer also by the library's names (dialects.OWN), as num_heads=2.

    Raises
    ------
    ConfigError
        An unknown name, attribute or value.
    """

    def __init__(self, name: str, *, dialect: str = "paper", state: Mapping[str, Array] | None = None, **attributes: Any
                 ) -> None:
        among("reference", name, REFERENCES)
        self.definition = REFERENCES[name]
        self.name, self.dialect, self.state = name, dialect, state
        among("dialect", dialect, DIALECTS)
        attributes = by_our_names(name, dialect, attributes)
        self.attributes: dict[str, Any] = {"dialect": dialect}
        if unknown := [key for key in attributes if key not in self.definition.attributes]:
            known = "; ".join(f"{key} ({words(value)})" for key, value in self.definition.attributes.items())
            raise ConfigError(f"{name} has no attribute {unknown[0]!r}, but {known or 'none'}")
        self.square = {} if state is not None else {
            key: value for key, value in self.definition.square.items() if attributes.get(key) is None}
        for key, allowed in self.definition.attributes.items():
            choice = isinstance(allowed, tuple)
            self.attributes[key] = attributes.get(key, allowed[0] if choice else allowed)
            if choice:
                among(key, self.attributes[key], allowed)
        self.attributes, self.state = self.definition.resolve(self.attributes, state)

    @property
    def outputs_by(self) -> Mapping[str, str]:
        return self.definition.outputs_by

    @cached_property
    def shapes(self) -> tuple[Words, Words]:
        """The shapes of the arrays and of the parameters in words: "n_src", "n_dst", "n_edges", "width", or a number.

        "n" in place of "n_src" and "n_dst" where the formula has no meaning on two sets of rows.
        """
        two = {1009: "n_src", 1013: "n_dst", 1019: "n_edges", 1021: "width"}  # primes, which no other size is
        for n_src, words in ((1009, two), (1013, {**two, 1013: "n"})):
            edges = EdgeList(np.zeros(1019, int), np.zeros(1019, int), n_src, 1013)
            with suppress(SarliteError):
                arrays, parameters = ({name: [words.get(size, size) for size in shape] for name, shape in found.items()}
                                      for found in (self.arrays(edges, 1021), self.parameters(1021)))
                return arrays, parameters
        return {}, {}

    @cached_property
    def arrays_by(self) -> dict[str, str]:
        """Kind of each array: "src", "dst", "edge", or "node" if both ends must be one set of nodes; otherwise "whole"."""
        kinds: dict[Any, str] = {"n_src": "src", "n_dst": "dst", "n_edges": "edge", "n": "node"}
        return {name: kinds.get(shape[0], "whole") if shape else "whole" for name, shape in self.shapes[0].items()}

    def check_dtype(self, dtype: str) -> None:
        """Raise a ConfigError where the dtype says that rows are narrow, but no order of sums and products says which.
        """
        own = self.attributes
        known = own["reduce"] not in ("max", "min") or not own["weighted"] if self.name == "spmm" else (
            self.name == "attention" and own["kind"] == "gat")
        if dtype in NARROW and not known:
            raise ConfigError(f"dtype {dtype}: is of spmm and of attention of kind 'gat', not of {described(self)}")

    def arrays(self, edges: EdgeList, width: int) -> Shapes:
        return self.definition.arrays(edges, width, self.attributes)

    def parameters(self, width: int) -> Shapes:
        return self.definition.parameters(width, self.attributes)

    def differentiable(self, case: Case) -> list[str]:
        """The names that a vector-Jacobian product gives: arrays and state."""
        return [name for name in (*case.arrays, *case.state) if self.definition.has_vjp
                and last_word(name) not in self.definition.fixed]

    def refuses(self, case: Case) -> str | None:
        """Why the dialect raises an error for these edges, or None; the reference computes the case anyway."""
        return self.definition.refuses(case.edges, case.attributes)

    def case(self, edges: EdgeList, *, name: str = "case", values: str = "random", seed: int = 0,
             dtype: str = "float32", accumulate: str | None = None, width: int = 17, index_dtype: str = "int64",
             square: bool = False) -> Case:
        """One input: normal numbers, of deviation 1 and for parameters 1/4, or integers from -3 to 3.

        With `square` sizes are equal that the definition has so. Sums are promised in `accumulate`, or as `dtype` has
        them.
        """
        among("values", values, ("random", "integers"))
        rng, attributes = np.random.default_rng(seed), {**self.attributes, **(self.square if square else {})}

        def drawn(shapes, scale=1.0):
            return {key: self._draw(key, rng, shape, values, dtype, scale) for key, shape in shapes.items()}

        arrays = drawn(self.definition.arrays(edges, width, attributes))
        # else the scores of attention would be large, and so the bounds of their errors
        scale = 0.25 if values == "random" else 1.0
        state = drawn(self.definition.parameters(width, attributes), scale) if self.state is None else dict(self.state)
        return Case(name, self.name, edges, arrays, attributes, state, dtype, accumulate or summed(dtype),
                    index_dtype)

    def cotangents(self, case: Case, values: str = "random", seed: int = 0) -> dict[str, Array]:
        """Return cotangents: a gradient of each output, for which gradients of the inputs are asked."""
        rng = np.random.default_rng([seed, 1])
        return {name: draw(rng, expr.shape, values, case.format) for name, expr in self.expressions(case)[1].items()}

    def expressions(self, case: Case) -> tuple[dict, dict]:
        """The inputs and the outputs of the formula for a case."""
        inputs = self._inputs(case)
        return inputs, self.definition.formula(inputs, case.edges, case.attributes)

    def _inputs(self, case):
        return {name: variable(name, np.shape(value)) if np.asarray(value).dtype.kind == "f" else value
                for name, value in {**case.arrays, **case.state}.items()}  # fmt: skip

    def outputs(self, case: Case, arithmetic: Any) -> dict[str, Number]:
        return self._evaluated(self.expressions(case)[1], case, arithmetic)

    def layers(self, case: Case, arithmetic: Any) -> dict[str, Number]:
        """Return the result of each convolution of a model, before norm and activation, as "layers.0" and so on."""
        return self._evaluated(self.layer_expressions(case), case, arithmetic)

    def layer_expressions(self, case: Case) -> dict[str, Any]:
        """Return the expressions that `layers` evaluates."""
        if self.definition.layers is None:
            return {}
        return {f"layers.{k}": expr
                for k, expr in enumerate(self.definition.layers(self._inputs(case), case.edges, case.attributes))}

    def gradients(self, case: Case, cotangents: Mapping[str, Array], arithmetic: Any) -> dict[str, Number]:
        """Return the gradients of the sum of <output, cotangent> by name of the array or parameter."""
        inputs, outputs = self.expressions(case)
        wanted = {name: inputs[name] for name in self.differentiable(case)}
        products = gradient(outputs, {name: constant(cotangents[name]) for name in outputs}, wanted)
        # (A X)' G may stand for X' (A' G)
        further = max(0, int(case.edges.in_degrees.max(initial=0)) + case.n_dst - case.n_src)
        return self._evaluated(products, case, arithmetic, dict.fromkeys(case.state, further))

    def _evaluated(self, exprs, case, arithmetic, rounds=None):
        return evaluate(exprs, {**case.arrays, **case.state}, arithmetic, rounds, NARROW.get(case.format))

    def _draw(self, key, rng, shape, values, dtype, scale):
        if last_word(key) in self.definition.draw:
            value = self.definition.draw[last_word(key)](rng, shape, self.attributes)
            return rounded(value, dtype) if value.dtype.kind == "f" else value
        return draw(rng, shape, values, dtype) * np.asarray(scale, dtype_of(dtype))


def words(value: Any) -> str:
    """Return the values that an attribute may have, or its default, as words; the first of several is the default."""
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def given(reference: str | Reference, attributes: Mapping[str, Any], dtype: str) -> Reference:
    """Return a reference of a name and attributes.

    Raises ConfigError if attributes come with a Reference, which has its own, or if it does not have the dtype.
    """
    if attributes and not isinstance(reference, str):
        raise ConfigError(f"attributes {', '.join(attributes)} belong into the Reference that is given")
    found = Reference(reference, **attributes) if isinstance(reference, str) else reference
    found.check_dtype(dtype)
    return found


def reference_of(case: Case) -> Reference:
    """Return the reference that a case is of.

    ConfigError where its operation, its dialect or an attribute is unknown.
    """
    attributes = {name: value for name, value in case.attributes.items() if name != "dialect"}
    return Reference(case.op, dialect=case.attributes.get("dialect", "paper"), state=case.state or None, **attributes)


def described(reference: Reference) -> str:
    """Return the reference's name with the attributes that are not the defaults."""
    usual = Reference(reference.name).attributes
    told = {name: value for name, value in reference.attributes.items() if isinstance(value, (str, int, float))
            and value != usual[name]}
    return f"{reference.name}({', '.join(f'{name}={value!r}' for name, value in told.items())})"


def suited(reference: Reference, edges: EdgeList, **options: Any) -> Case:
    """Return a case of a reference; ConfigError or ShapeError where the formula has no meaning on these edges."""
    case = reference.case(edges, **options)
    reference.expressions(case)
    return case


def last_word(name: str) -> str:
    """Return the last word of a dotted name: "running_var" of "norms.0.running_var"."""
    return name.rpartition(".")[2]


def draw(rng: np.random.Generator, shape: tuple[int, ...], values: str, dtype: str) -> Array:
    if values == "integers":
        return rounded(rng.integers(-3, 4, shape), dtype)
    numbers = rounded(rng.standard_normal(shape), dtype)
    if dtype not in NARROW:
        return numbers
    halfway = (numbers.view(np.uint32) & np.uint32(0xFFFF0000) | np.uint32(0x8000)).view(np.float32)  # of bfloat16's
    return np.where(rng.random(shape) < 0.25, halfway, numbers)
