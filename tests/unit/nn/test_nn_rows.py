"""Learned rows of which a step picks some: gradient and step equal the ones for an array of all rows."""

import numpy as np
import pytest

from sarlite import nn, optim
from sarlite.tape import Tensor, ops
from tests.helpers.graph.strategies import values

N, WIDTH = 12, 3


class Picks(nn.Module):
    def __init__(self, n=N):
        self.rows = nn.Embedding(np.arange(n) * 2, WIDTH, rng=nn.Random(0), dtype=np.float64)
        self.scale = nn.Parameter(np.ones(WIDTH))

    def __call__(self, *rows):
        return sum(((self.rows(picked_ids) * self.scale) * values(k, len(picked_ids), WIDTH)).sum() for k, picked_ids in enumerate(rows))


def gradient(model, *rows):
    """Return the gradient by a loop over the picks."""
    grad = np.zeros((N, WIDTH))
    for k, picked_ids in enumerate(rows):
        np.add.at(grad, picked_ids, values(k, len(picked_ids), WIDTH))
    return grad


@pytest.mark.parametrize("rows", [[[3, 1, 7]], [[5, 5, 2, 5]], [[4, 0], [0, 9, 4]], [[]]], ids=["some", "twice", "two picks", "none"])
def test_gradients_of_picked_rows(rows):
    model, rows = Picks(), [np.array(ids, np.int64) for ids in rows]
    flat = nn.flatten(model)
    for _ in range(3):  # rows of the step before are 0 again
        flat.zero_grad()
        model(*rows).backward()
        (group,) = flat.owned
        if len(rows) == 1:
            assert group.touched.tolist() == sorted({*rows[0].tolist()})
        np.testing.assert_allclose(group.gradient, gradient(model, *rows))
    flat.zero_grad()
    model(np.array([11])).backward()
    np.testing.assert_allclose(model.rows.weight.grad, gradient(model, np.array([11])))


def test_a_step_is_that_of_all_rows():
    """Adam has weight decay; one parameter has its gradient read, and becomes an array of all rows."""
    def train(read):
        model = Picks()
        flat = nn.flatten(model)
        adam = optim.Adam(flat, 0.1, weight_decay=0.1)
        for step in range(6):
            flat.zero_grad()
            if read:
                assert model.rows.weight.grad.shape == (N, WIDTH)
            model(np.array([step, 2, 2 * step % 7])).backward()
            (group,) = flat.owned
            assert (group.touched is None) == read
            adam.step()
        return flat.owned[0].data, *adam.state_arrays().values()

    for few, whole in zip(train(False), train(True), strict=True):
        np.testing.assert_array_equal(few, whole)


def test_a_gradient_that_a_program_changes_counts():
    model = Picks()
    flat = nn.flatten(model)
    descent = optim.SGD(flat, 1.0)
    flat.zero_grad()
    model(np.array([1])).backward()
    before = flat.owned[0].data.copy()
    held = model.rows.weight.grad
    held[8] = 5  # the gradient of a row that was not picked
    descent.step()
    assert (before - flat.owned[0].data)[8].tolist() == [5] * WIDTH
    flat.zero_grad()
    held[9] = 7  # once the array was read, it may change at any time
    descent.step()
    assert (before - flat.owned[0].data)[9].tolist() == [7] * WIDTH
    flat.zero_grad()
    assert not held.any()


def test_whole_rows_beside_picked_ones():
    """The same rows are picked and used whole: their gradients add up, in either order."""
    for first in (True, False):
        model = Picks()
        flat, weight = nn.flatten(model), model.rows.weight
        flat.zero_grad()
        parts = [(weight * values(9, N, WIDTH)).sum(), model(np.array([3, 3]))]
        (parts[first] + parts[not first]).backward()
        np.testing.assert_allclose(weight.grad, gradient(model, np.array([3, 3])) + values(9, N, WIDTH))


def test_an_array_that_another_gradient_is_added_to():
    """A sum gives one array as the gradient of both summands; later gradients of one summand are added to that array."""
    model = Picks()
    flat, rows = nn.flatten(model), np.array([1, 4, 2])
    flat.zero_grad()
    leaf = Tensor(values(1, 3, WIDTH), requires_grad=True)
    z = leaf * 1.0
    other = (z * values(2, 3, WIDTH)).sum()
    ((model.rows(rows) + z) * values(3, 3, WIDTH) + other).sum().backward()
    expected = np.zeros((N, WIDTH))
    expected[rows] = values(3, 3, WIDTH)
    np.testing.assert_allclose(model.rows.weight.grad, expected)
    np.testing.assert_allclose(leaf.grad, values(3, 3, WIDTH) + 3 * WIDTH * values(2, 3, WIDTH))


def test_rows_of_a_tensor_that_is_no_parameter():
    x = Tensor(values(1, N, WIDTH), requires_grad=True)
    (ops.take(x * 2, np.array([3, 3, 5])).sum() + ops.take(x, np.array([5])).sum()).backward()
    expected = np.zeros((N, WIDTH))
    expected[3], expected[5] = 4, 3
    np.testing.assert_array_equal(x.grad, expected)
