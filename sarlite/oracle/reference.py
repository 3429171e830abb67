"""`Reference`: an operation or layer with its attributes; it makes cases, and computes their exact outputs and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, cast

import numpy as np

from sarlite.errors import ConfigError, SarliteError
from sarlite.oracle import layer_formulas, models, operations  # noqa: F401  these modules fill REFERENCES
from sarlite.oracle.case import Attributes, Case, State
from sarlite.oracle.choices import check_choice
from sarlite.oracle.definition import REFERENCES, Shapes
from sarlite.oracle.dialects import DIALECTS, oracle_attributes
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.expression import Expr, constant, evaluate, variable
from sarlite.oracle.formats import NARROW, default_accumulate, dtype_of, rounded
from sarlite.oracle.gradient import gradient
from sarlite.oracle.plain import Arithmetic, BoundedArray
from sarlite.types import Array, T

ShapeWords = dict[str, list[str | int]]


class Reference:
    """Reference implementation of an operation or a layer, which returns the expected results.

    Parameters
    ----------
    name : str
        A key of REFERENCES, such as "spmm".
    dialect : "paper", "dgl" or "pyg"
        Library whose parameter names, layouts and default behaviour apply.
    state : dict of str to array, optional
        Parameters by the dialect's names. If omitted, each case gets random parameters.
    **attributes
        Such as reduce="mean". Attributes of a library's layer may also have the library's names, such as num_heads=2.

    Attributes
    ----------
    definition : Definition
    attributes : dict
        All attributes with their values, and "dialect".

    Raises
    ------
    ConfigError
        An unknown name, attribute or value, or one that contradicts the state.
    DataError
        The state lacks a parameter, or has one of an unknown name or of a wrong shape.

    Examples
    --------
    >>> from sarlite import oracle
    >>> reference = oracle.Reference("spmm", reduce="mean", weighted=True)
    >>> reference.attributes["reduce"], reference.arrays_by
    ('mean', {'x': 'src', 'weight': 'edge'})
    >>> case = reference.case(oracle.EdgeList([0, 1], [1, 1], n_src=2, n_dst=2), width=3)
    >>> case.x.shape, case.weight.shape
    ((2, 3), (2,))
    >>> oracle.Reference("gat", dialect="dgl", in_feats=16, out_feats=8, num_heads=4).attributes["n_heads"]
    4
    """

    def __init__(self, name: str, *, dialect: str = "paper", state: State | None = None, **attributes: Any
                 ) -> None:
        check_choice("reference", name, REFERENCES)
        self.definition = REFERENCES[name]
        self.name, self.dialect, self.state = name, dialect, state
        check_choice("dialect", dialect, DIALECTS)
        attributes = oracle_attributes(name, dialect, attributes)
        self.attributes: dict[str, Any] = {"dialect": dialect}
        if unknown := [key for key in attributes if key not in self.definition.attributes]:
            choices = "; ".join(f"{key} ({words(value)})" for key, value in self.definition.attributes.items())
            raise ConfigError(f"{name} has no attribute {unknown[0]!r}, but {choices or 'none'}")
        self.square = {} if state is not None else {
            key: value for key, value in self.definition.square.items() if attributes.get(key) is None}
        for key, allowed in self.definition.attributes.items():
            choice = isinstance(allowed, tuple)
            self.attributes[key] = attributes.get(key, allowed[0] if choice else allowed)
            if choice:
                check_choice(key, self.attributes[key], allowed)
        self.attributes, self.state = self.definition.resolve(self.attributes, state)

    @property
    def outputs_by(self) -> Mapping[str, str]:
        """{name of each output: kind of its rows}, "dst" or "src" for rows by destination or source, "edge" for rows by edge."""
        return self.definition.outputs_by

    @cached_property
    def shapes(self) -> tuple[ShapeWords, ShapeWords]:
        """Shapes of the inputs and of the parameters, as two dicts by name. A shape lists integers, and the words "n_src",
        "n_dst", "n_edges" and "width" for sizes that depend on the case.

        "n" stands for both "n_src" and "n_dst" if the formula needs one set of nodes.
        """
        two = {1009: "n_src", 1013: "n_dst", 1019: "n_edges", 1021: "width"}  # primes, which no other size is a multiple of
        for n_src, words in ((1009, two), (1013, {**two, 1013: "n"})):
            edges = EdgeList(np.zeros(1019, int), np.zeros(1019, int), n_src, 1013)
            with suppress(SarliteError):
                arrays, parameters = ({name: [words.get(size, size) for size in shape] for name, shape in named_shapes.items()}
                                      for named_shapes in (self.arrays(edges, 1021), self.parameters(1021)))
                return arrays, parameters
        return {}, {}

    @cached_property
    def arrays_by(self) -> dict[str, str]:
        """{name of each input array: kind of its rows}: "src", "dst" or "edge"; "node" if sources and destinations must be the
        same nodes; "whole" for an array without rows of these kinds.
        """
        kinds: dict[str | int, str] = {"n_src": "src", "n_dst": "dst", "n_edges": "edge", "n": "node"}
        return {name: kinds.get(shape[0], "whole") if shape else "whole" for name, shape in self.shapes[0].items()}

    def check_dtype(self, dtype: str) -> None:
        """Raise ConfigError if `dtype` is "bfloat16-rows" and this operation does not define which rows are rounded to bfloat16."""
        attributes = self.attributes
        supported = attributes["reduce"] not in ("max", "min") or not attributes["weighted"] if self.name == "spmm" else (
            self.name == "attention" and attributes["kind"] == "gat")
        if dtype in NARROW and not supported:
            raise ConfigError(f"dtype {dtype}: available for spmm and for attention of kind 'gat', not for {reference_label(self)}")

    def arrays(self, edges: EdgeList, width: int) -> Shapes:
        """Return the shapes of the input arrays by name, for a graph and inputs of `width` columns."""
        return self.definition.arrays(edges, width, self.attributes)

    def parameters(self, width: int) -> Shapes:
        """Return the shapes of the parameters by name, for inputs of `width` columns."""
        return self.definition.parameters(width, self.attributes)

    def differentiable(self, case: Case) -> list[str]:
        """Return the names of the arrays and parameters of `case` that have a gradient; none if gradients of the operation are
        not checked.
        """
        return [name for name in (*case.arrays, *case.state) if self.definition.has_vjp
                and last_word(name) not in self.definition.fixed]

    def refuses(self, case: Case) -> str | None:
        """Return the reason why the layer of the case's library (its dialect) raises an error on the edges of `case`; None if
        that layer computes a result.

        The reference computes a result for every case.
        """
        return self.definition.refuses(case.edges, case.attributes)

    def case(self, edges: EdgeList, *, name: str = "case", values: str = "random", seed: int = 0,
             dtype: str = "float32", accumulate: str | None = None, width: int = 17, index_dtype: str = "int64",
             square: bool = False) -> Case:
        """Return a case on the graph `edges` with random inputs of `width` columns: normal numbers if `values` is "random", or
        small "integers". Sums have the dtype `accumulate` (None: the default for `dtype`). If `square` is True, sizes that differ
        by default, such as heads and features, are made equal.

        Parameters
        ----------
        edges : EdgeList
        name : str
        values : "random" or "integers"
            Normal random numbers with standard deviation 1 (1/4 for parameters), or integers from -3 to 3.
        seed : int
        dtype, accumulate, index_dtype : str
            See `Case`. `accumulate` is the dtype's default if omitted.
        width : int
            Number of columns of the inputs.
        square : bool
            True if sizes that differ by default are made equal (`Definition.square`).

        Examples
        --------
        >>> from sarlite import oracle
        >>> reference = oracle.Reference("softmax")
        >>> reference.case(oracle.EdgeList([0, 1], [0, 0], 2, 1), values="integers", width=4).scores.shape
        (2, 4)
        """
        check_choice("values", values, ("random", "integers"))
        rng, attributes = np.random.default_rng(seed), {**self.attributes, **(self.square if square else {})}

        def drawn(shapes, scale=1.0):
            return {key: self._draw(key, rng, shape, values, dtype, scale) for key, shape in shapes.items()}

        arrays = drawn(self.definition.arrays(edges, width, attributes))
        # smaller parameters keep the scores of attention, and with them their error bounds, small
        scale = 0.25 if values == "random" else 1.0
        state = drawn(self.definition.parameters(width, attributes), scale) if self.state is None else dict(self.state)
        return Case(name, self.name, edges, arrays, attributes, state, dtype, accumulate or default_accumulate(dtype),
                    index_dtype)

    def cotangents(self, case: Case, values: str = "random", seed: int = 0) -> dict[str, Array]:
        """Return a random gradient for each output of a case by name; `values` is "random" (normal numbers) or "integers"."""
        rng = np.random.default_rng([seed, 1])
        return {name: draw(rng, expr.shape, values, case.format) for name, expr in self.expressions(case)[1].items()}

    def expressions(self, case: Case) -> tuple[dict[str, Expr | Array], dict[str, Expr]]:
        """Return ({name: input}, {name: output}) of the formula for a case, as expressions."""
        inputs = self._inputs(case)
        return inputs, self.definition.formula(inputs, case.edges, case.attributes)

    def _inputs(self, case):
        return {name: variable(name, np.shape(value)) if np.asarray(value).dtype.kind == "f" else value
                for name, value in {**case.arrays, **case.state}.items()}  # fmt: skip

    def outputs(self, case: Case, arithmetic: Arithmetic[T]) -> dict[str, BoundedArray]:
        """Return the outputs of a case by name, computed in `arithmetic`, such as BoundArithmetic for error bounds."""
        return self._evaluated(self.expressions(case)[1], case, arithmetic)

    def layers(self, case: Case, arithmetic: Arithmetic[T]) -> dict[str, BoundedArray]:
        """Return the result of each convolution of a model for `case`, before norm and activation, computed in `arithmetic`, by
        name: "layers.0" and so on; {} unless the reference is a model.
        """
        return self._evaluated(self.layer_expressions(case), case, arithmetic)

    def layer_expressions(self, case: Case) -> dict[str, Expr]:
        """Return the result of each convolution of a model as an expression, by name; {} unless the reference is a model."""
        if self.definition.layers is None:
            return {}
        return {f"layers.{k}": expr
                for k, expr in enumerate(self.definition.layers(self._inputs(case), case.edges, case.attributes))}

    def gradients(self, case: Case, cotangents: Mapping[str, Array], arithmetic: Arithmetic[T]) -> dict[str, BoundedArray]:
        """Return the gradients of a case's arrays and parameters by name, for `cotangents`, the gradients of the outputs. They
        are computed in `arithmetic`, such as BoundArithmetic for error bounds.
        """
        inputs, outputs = self.expressions(case)
        wanted = {name: cast(Expr, inputs[name]) for name in self.differentiable(case)}
        products = gradient(outputs, {name: constant(cotangents[name]) for name in outputs}, wanted)
        # A kernel may compute (A X)' G as X' (A' G), which passes this many roundings more.
        further = max(0, int(case.edges.in_degrees.max(initial=0)) + case.n_dst - case.n_src)
        return self._evaluated(products, case, arithmetic, dict.fromkeys(case.state, further))

    def _evaluated(self, exprs, case, arithmetic, rounds=None):
        return evaluate(exprs, {**case.arrays, **case.state}, arithmetic, rounds, NARROW.get(case.format))

    def _draw(self, key, rng, shape, values, dtype, scale):
        if last_word(key) in self.definition.draw:
            value = self.definition.draw[last_word(key)](rng, shape, self.attributes)
            return rounded(value, dtype) if value.dtype.kind == "f" else value
        return draw(rng, shape, values, dtype) * np.asarray(scale, dtype_of(dtype))


def words(value: object) -> str:
    """Return an attribute's allowed values, a tuple, as one text with commas; or `value`, a single default, as text."""
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def as_reference(reference: str | Reference, attributes: Attributes, dtype: str) -> Reference:
    """Return the Reference of the name `reference` with these attributes, or `reference` itself if it is a Reference. Raise
    ConfigError if the operation does not support `dtype`, or if `attributes` is not empty although `reference` is a Reference,
    which has its own.

    Raises
    ------
    ConfigError
        Attributes come with a Reference, which has its own; or the reference does not support the dtype.
    """
    if attributes and not isinstance(reference, str):
        raise ConfigError(f"attributes {', '.join(attributes)} belong to the Reference: pass them to Reference(...)")
    result = Reference(reference, **attributes) if isinstance(reference, str) else reference
    result.check_dtype(dtype)
    return result


def reference_of(case: Case) -> Reference:
    """Return the Reference of a case's operation, set to the attributes and the parameters that the case holds.

    Raises
    ------
    ConfigError
        The operation, the dialect or an attribute is unknown.
    """
    attributes = {name: value for name, value in case.attributes.items() if name != "dialect"}
    return Reference(case.op, dialect=case.attributes.get("dialect", "paper"), state=case.state or None, **attributes)


def reference_label(reference: Reference) -> str:
    """Return the reference's name with its non-default attributes, such as "spmm(reduce='mean')"."""
    usual = Reference(reference.name).attributes
    changed = {name: value for name, value in reference.attributes.items() if isinstance(value, (str, int, float))
            and value != usual[name]}
    attributes = ", ".join(f"{name}={value!r}" for name, value in changed.items())
    return f"{reference.name}({attributes})" if attributes else reference.name


def valid_case(reference: Reference, edges: EdgeList, **options: Any) -> Case:
    """Return `reference.case(edges, **options)`; raise ConfigError or ShapeError if the formula is not defined on these edges."""
    case = reference.case(edges, **options)
    reference.expressions(case)
    return case


def last_word(name: str) -> str:
    """Return the last word of a dotted name: "running_var" for "norms.0.running_var"."""
    return name.rpartition(".")[2]


def draw(rng: np.random.Generator, shape: tuple[int, ...], values: str, dtype: str) -> Array:
    """Return random values from `rng`, rounded to a dtype: integers from -3 to 3 if `values` is "integers", else standard normal
    numbers.

    If rows of the dtype are rounded to bfloat16, a fourth of the normal numbers lie halfway between two numbers of
    bfloat16.
    """
    if values == "integers":
        return rounded(rng.integers(-3, 4, shape), dtype)
    numbers = rounded(rng.standard_normal(shape), dtype)
    if dtype not in NARROW:
        return numbers
    halfway = (numbers.view(np.uint32) & np.uint32(0xFFFF0000) | np.uint32(0x8000)).view(np.float32)
    return np.where(rng.random(shape) < 0.25, halfway, numbers)
