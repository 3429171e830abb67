"""Random programs of the tape, whose values and gradients must equal NumPy's formulas in long double."""

import numpy as np

from sarlite.tape import Tensor
from tests.helpers.tape import slopes, tape_steps
from tests.helpers.tape.slopes import LONG, Frozen, Unclear

SHAPES = [
    (),
    (1,),
    (4,),
    (3, 4),
    (3, 1),
    (1, 4),
    (4, 3),
    (2, 3, 4),
    (2, 1, 4),
    (3, 4, 2),
    (4, 4),
    (0, 4),
    (3, 0),
    (0,),
    (2, 0, 4),
]
RTOL = {np.dtype(np.float64): (1e-10, 1e-8), np.dtype(np.float32): (2e-4, 4e-3)}  # tolerances of values and of gradients
LARGEST = 30  # larger values would lose digits in later steps
STEPS = 9


class Program:
    """Random program of the tape: leaves (inputs), steps, and outputs with their gradients; some steps assign new data to a leaf."""

    def __init__(self, dice):
        self.dice = dice
        self.dtype = np.dtype(np.float32 if dice.random() < 0.25 else np.float64)
        self.near = 1e-3 if self.dtype == np.float32 else 1e-9
        shapes = [SHAPES[k] for k in dice.integers(0, len(SHAPES), dice.integers(1, 5))]
        self.arrays = [self._values(shape) for shape in shapes]
        self.needs = dice.random(len(shapes)) < 0.8
        self.constant = ~self.needs & (dice.random(len(shapes)) < 0.5)
        self.layouts = dice.integers(0, 5, len(shapes))
        self.steps, self.new_data = [], {}  # step -> (leaf, array)
        self._draw(int(dice.integers(1, STEPS + 1)))
        self.outputs = sorted({len(self.all_shapes) - 1, *dice.integers(0, len(self.all_shapes), 2).tolist()})
        self.weights = [self._values(self.all_shapes[k]) for k in self.outputs]

    def _values(self, shape):
        """Return a random array of this shape: normal numbers, or in a quarter of the calls multiples of 1/4, of which many are equal."""
        drawn = self.dice.standard_normal(shape) if self.dice.random() < 0.75 else self.dice.integers(-4, 5, shape) / 4
        return np.asarray(drawn, self.dtype)

    def _draw(self, n_steps):
        values = [a.astype(LONG) for a in self.arrays]
        for k in range(n_steps):
            movable = [i for i in range(len(self.arrays)) if self.needs[i]]
            if movable and self.dice.random() < 0.05:
                leaf = movable[int(self.dice.integers(len(movable)))]
                self.new_data[k] = leaf, self._values(self.arrays[leaf].shape)
                values[leaf] = self.new_data[k][1].astype(LONG)
            step = tape_steps.draw(self.dice, [v.shape for v in values])
            with np.errstate(all="ignore"):
                out = np.asarray(step.formula(Frozen(self.near), *(values[i] for i in step.taken)))
            if out.size > 200 or not np.isfinite(out).all() or np.abs(out).max(initial=0) > LARGEST:
                raise Unclear
            self.steps.append(step)
            values.append(out)
        self.all_shapes = [v.shape for v in values]

    def __str__(self):
        lines = [
            f"v{i} = {self.dtype} {a.shape}, needs {need}, layout {layout}"
            for i, (a, need, layout) in enumerate(zip(self.arrays, self.needs, self.layouts))
        ]
        for k, step in enumerate(self.steps):
            lines += [f"v{self.new_data[k][0]}.data = ..."] if k in self.new_data else []
            lines.append(f"v{len(self.arrays) + k} = {step.name} of {', '.join(f'v{i}' for i in step.taken)}")
        return "\n".join([*lines, f"outputs {self.outputs}"])

    # ---- the two ways

    def formula(self, frozen_choices, moved_leaves):
        """Return all outputs by NumPy in long double, given the leaves' values `moved_leaves`; later data of a leaf move by as much."""
        values = list(moved_leaves)
        for k, step in enumerate(self.steps):
            if k in self.new_data:
                leaf, array = self.new_data[k]
                values[leaf] = array.astype(LONG) + (moved_leaves[leaf] - self.arrays[leaf].astype(LONG))
            values.append(np.asarray(step.formula(frozen_choices, *(values[i] for i in step.taken)), LONG))
        return [values[k] for k in self.outputs]

    def run(self):
        """Run the program on the tape; return (leaves, values of all leaves and steps, [(value of a step, copy of its array)])."""
        leaves = [
            Tensor(_laid_out(a.copy(), layout), requires_grad=bool(need), constant=bool(constant))
            for a, layout, need, constant in zip(self.arrays, self.layouts, self.needs, self.constant)
        ]
        values, snapshots = list(leaves), []
        for k, step in enumerate(self.steps):
            if k in self.new_data:
                leaf, array = self.new_data[k]
                values[leaf].data = array.copy()
            out = step.run(*(values[i] for i in step.taken))
            values.append(
                out * 1.0 if any(out is value for value in values) else out
            )  # a copy, so that new data of a leaf do not change the result
            snapshots.append((values[-1], values[-1].data.copy()))
        return leaves, values, snapshots

    # ---- the checks

    def check(self):
        frozen, long_leaves = Frozen(self.near), [a.astype(LONG) for a in self.arrays]
        with np.errstate(all="ignore"):
            expected = self.formula(frozen, long_leaves)
            leaves, values, snapshots = self.run()
        rtol, grad_rtol = RTOL[self.dtype]
        for k, out in zip(self.outputs, expected):
            assert values[k].dtype == self.dtype, f"v{k} is {values[k].dtype}"
            slopes.close(values[k].data, out, rtol, f"v{k}")
        way = WAYS[int(self.dice.integers(len(WAYS)))]
        with np.errstate(all="ignore"):
            try:
                times = way(self, leaves, [values[k] for k in self.outputs])
            except RuntimeError as error:
                if not self.new_data or "have changed since" not in str(error):
                    raise
                return "refused: data had changed"
            wanted = [i for i, leaf in enumerate(leaves) if leaf.requires_grad]
            grads = [None if leaves[i].grad is None else leaves[i].grad / times for i in wanted]
            self._check_arrays(leaves, snapshots)
            def moved(fr, some):
                return self.formula(
                            fr, [some[wanted.index(i)] if i in wanted else x for i, x in enumerate(long_leaves)]
                        )  # noqa: E731
            slopes.check(
                moved, frozen, [long_leaves[i] for i in wanted], grads, self.weights, self.dice, grad_rtol, wanted
            )
        return way.__name__.replace("_", " ")

    def _check_arrays(self, leaves, snapshots):
        """Check that gradients of `leaves` share no memory, and that backward changed no value in `snapshots`, [(value, copy of array)]."""
        grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
        for k, grad in enumerate(grads):
            assert grad.flags.writeable and grad.dtype == self.dtype
            others = [*grads[:k], *(leaf.data for leaf in leaves), *self.weights, *(value.data for value, _ in snapshots)]
            assert not any(np.shares_memory(grad, other) for other in others), "a gradient shares its memory"
        for (value, before), step in zip(snapshots, self.steps):
            if value.version == 0:
                np.testing.assert_array_equal(value.data, before, err_msg=f"{step.name} was written over")
        for leaf, array, k in zip(leaves, self.arrays, range(len(leaves))):
            if k not in [leaf for leaf, _ in self.new_data.values()]:
                np.testing.assert_array_equal(leaf.data, array, err_msg=f"leaf {k} was written over")


# ---- ways to go backward; each returns how often the gradient was added


def one_sum(program, leaves, outputs):
    total = sum((out * w).sum() for out, w in zip(outputs, program.weights))
    total.backward()
    return 1


def one_sum_again(program, leaves, outputs):
    total = sum((out * w).sum() for out, w in zip(outputs, program.weights))
    total.backward(retain_graph=True)
    total.backward(2.0, retain_graph=True)
    total.backward()
    if total.requires_grad:
        _refused(total)
    return 4


def each_output(program, leaves, outputs):
    for k, (out, w) in enumerate(zip(outputs, program.weights)):
        before = w.copy()
        out.backward(w, retain_graph=k < len(outputs) - 1)
        np.testing.assert_array_equal(w, before)
    return 1


def onto_arrays(program: Program, leaves: list, outputs: list):
    """Run backward on `leaves` that have gradients already; check that new gradients are added to these arrays in place."""
    grads = {}
    for leaf in leaves:
        if leaf.requires_grad:
            leaf.grad = grads[id(leaf)] = np.ones_like(leaf.data)
    one_sum_again(program, leaves, outputs)
    for leaf in leaves:
        if leaf.requires_grad:
            assert leaf.grad is grads[id(leaf)]
            leaf.grad -= 1
    return 4


def after_a_change(program: Program, leaves: list, outputs: list):
    """Change one of `leaves` in place after the forward pass; check that backward gives the old values' gradients or an error.

    After an error no leaf has a gradient.

    Backward must compute the gradient of the old values, or raise an error and leave no gradient.
    """
    total = sum((out * w).sum() for out, w in zip(outputs, program.weights))
    for leaf in leaves:
        if not leaf.constant and leaf.data.flags.writeable and program.dice.random() < 0.3:
            before = leaf.data.copy()
            leaf.data[...] = 7
            leaf.changed()
            try:
                total.backward(retain_graph=True)
            except RuntimeError as error:
                assert "have changed since" in str(error), error
                assert all(other.grad is None for other in leaves), "a refused backward has left gradients"
                raise Unclear from None
            leaf.data[...] = before
            return 1
    total.backward()
    return 1


def _refused(total):
    try:
        total.backward()
    except RuntimeError as error:
        assert "already used" in str(error), error
    else:
        assert total.node is None, "a tape was used twice"


WAYS = (one_sum, one_sum_again, each_output, onto_arrays, after_a_change)


def _laid_out(array, layout):
    """Return the values of `array` in memory layout number `layout`: 1 to 4, or 0 for the array itself."""
    if layout == 1 and array.ndim:
        return np.asfortranarray(array)
    if layout == 2 and array.ndim:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
        wide[..., 1::2] = array
        return wide[..., 1::2]
    if layout == 3 and array.ndim:
        return np.ascontiguousarray(array[::-1])[::-1]
    if layout == 4:
        array.flags.writeable = False
    return array
