"""The backward pass and the residuals that the tape keeps for it."""

import gc
import weakref

import numpy as np
import pytest

from sarlite.tape import Tensor, apply, no_grad, ops


def leaf(*shape):
    return Tensor(np.arange(1.0, 1 + np.prod(shape)).reshape(shape), requires_grad=True)


def residuals(t):
    """Return the arrays among a tensor's residuals."""
    return [r for r in t.node.residuals if isinstance(r, (np.ndarray, np.generic))]


def only(arrays, *expected):
    return sorted(map(id, arrays)) == sorted(map(id, expected))


# ---- residuals


@pytest.mark.parametrize(
    "f",
    [
        lambda a: a + a,
        lambda a: a + 1,
        lambda a: a - np.ones((2, 3)),
        lambda a: -a,
        lambda a: a.sum(),
        lambda a: a.sum(0),
        lambda a: a.mean(1),
        lambda a: a.reshape(3, 2),
        lambda a: a.T,
        lambda a: a[1:],
        lambda a: a[:, 0],
        lambda a: ops.concat([a, a]),
        lambda a: ops.stack([a, a]),
        lambda a: a.astype(np.float32),
        lambda a: a * 2,
        lambda a: a / 3.0,
    ],
)
def test_linear_operations_keep_no_array(f):
    out = f(leaf(2, 3))
    assert not residuals(out)
    assert not out.node.volatile


@pytest.mark.parametrize("f", [ops.mul, ops.div, ops.matmul])
def test_products_keep_what_the_other_side_needs(f):
    a, b = leaf(3, 3), leaf(3, 3)
    assert only(residuals(f(a, b)), a.data, b.data)
    assert only(residuals(f(a, b.detach())), b.data)
    if f is not ops.div:  # a / b needs b for both
        assert only(residuals(f(a.detach(), b)), a.data)


def test_activations_keep_one_array():
    a = leaf(2, 3)
    for f in (ops.relu, ops.leaky_relu, ops.elu, ops.sigmoid, ops.tanh, ops.exp, ops.sqrt, ops.log_softmax, ops.softmax):
        out = f(a)
        assert only(residuals(out), out.data)
    for f in (ops.log, ops.abs, lambda a: a**2):
        assert only(residuals(f(a)), a.data)


def test_other_operations_keep_their_inputs_themselves():
    a, ids, rows = leaf(3, 3), np.arange(3), np.array([0, 2])
    condition, labels = a.data > 1, np.array([0, 1, 2])
    assert only(residuals(ops.dropout(a, ids, 1, 0.5)), ids)
    assert only(residuals(ops.take(a, rows)), rows)
    assert only(residuals(ops.where(condition, a, 0)), condition)
    assert only(residuals(ops.cross_entropy(a, labels, rows)), a.data, labels, rows)
    gamma = leaf(3)
    assert sum(r is a.data or r is gamma.data for r in residuals(ops.layer_norm(a, gamma, gamma))) == 2
    fixed = ops.layer_norm(a.detach(), gamma.detach(), leaf(3))
    assert not residuals(fixed)  # d_beta needs neither


def volatile(x):
    x.volatile = True
    return x


@pytest.mark.parametrize(
    ("linear", "f"),
    [
        (True, lambda src, w: src * w),
        (True, lambda src, w: (src + 1) / w),
        (True, lambda src, w: src[:2].sum(0)),
        (True, lambda src, w: ops.dropout(src, np.arange(3), 1, 0.5)),
        (True, lambda src, w: ops.take(src, np.array([1, 1]))),
        (True, lambda src, w: ops.where(w > 0, src, 0)),
        (True, lambda src, w: src @ w.detach()),
        (False, lambda src, w: src * w.requiring()),
        (False, lambda src, w: src @ w.requiring()),
        (False, lambda src, w: src.relu()),
        (False, lambda src, w: src * src),
        (False, lambda src, w: src.max(0)),
        (False, lambda src, w: ops.where(src > 0, src, 0)),
        (False, lambda src, w: w.requiring() * src.detach()),
        (False, lambda src, w: src.sum().exp()),
        (False, lambda src, w: ops.maximum(src, w)),
        (False, lambda src, w: ops.layer_norm(src, w[0], w[0])),
    ],
)
def test_linear_in_volatile_rows_is_found(linear, f):
    """No residual of a linear message depends on the remote rows; some residual of any other message does."""

    class Weight(Tensor):
        def requiring(self):
            return Tensor(self.data, requires_grad=True)

    src = volatile(leaf(3, 3))
    out = f(src, Weight(np.full((3, 3), 2.0)))
    assert out.volatile
    assert linear == (not out.node.volatile)


# ---- recording


def test_no_grad_records_nothing():
    a = leaf(2, 2)
    with no_grad():
        out = (a * a).relu() @ a
    assert out.node is None and not out.requires_grad
    assert (a * a).requires_grad
    constant = Tensor(np.ones(3)) * 2
    assert constant.node is None


def test_backward_adds_to_gradients():
    a = leaf(3)
    (a * 2).sum().backward()
    first = a.grad
    (a * 3).sum().backward()
    assert a.grad is first and a.grad.tolist() == [5, 5, 5]
    flat = np.zeros(3)
    a.grad = flat
    (a + a + a).sum().backward()
    assert flat.tolist() == [3, 3, 3]


def test_a_leafs_grad_is_its_own():
    a, b = leaf(3), leaf(3)
    g = np.ones(3)
    (a + b).backward(g)
    a.grad += 1
    assert b.grad.tolist() == g.tolist() == [1, 1, 1]


def test_gradients_of_both_paths_of_a_diamond_add_up():
    a = leaf(3)
    b = a * 2
    (b * b + b).sum().backward()
    np.testing.assert_array_equal(a.grad, 8 * a.data + 2)


def test_unused_branch_gets_no_gradient():
    a, b = leaf(3), leaf(3)
    _ = b * a
    (a * 2).sum().backward()
    assert b.grad is None


def test_deep_chain_needs_no_recursion():
    a = leaf(2)
    x = a
    for _ in range(10_000):
        x = x + 1
    x.sum().backward()
    assert a.grad.tolist() == [1, 1]
    del x  # freeing it must not recurse either
    gc.collect()


def test_a_used_tape_cannot_be_used_again():
    a = leaf(3)
    shared = a * a
    loss = shared.sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="already used"):
        loss.backward()
    with pytest.raises(RuntimeError, match="'mul' was already used"):
        (shared * 2).sum().backward()


def test_backward_frees_residuals():
    a = leaf(3)
    hidden = a.exp()
    alive = weakref.ref(hidden.data)
    loss = (hidden * hidden).sum()
    del hidden
    assert alive() is not None
    loss.backward()
    assert alive() is None


def test_backward_of_an_array_needs_its_gradient():
    with pytest.raises(ValueError, match="needs its gradient"):
        (leaf(3) * 2).backward()
    with pytest.raises(TypeError, match="float"):
        Tensor(np.arange(3), requires_grad=True)
    with pytest.raises(KeyError):
        apply("no such primitive", leaf(3))


def test_detach_cuts_history():
    a = leaf(3)
    (a * a.detach()).sum().backward()
    np.testing.assert_array_equal(a.grad, a.data)


def test_backward_frees_what_a_primitive_kept_and_was_given():
    x = Tensor(np.ones(3), requires_grad=True)
    middle = x * 2.0
    out = middle.sum(0)
    out.backward(np.ones_like(out.data))
    assert [node.residuals for node in (middle.node, out.node)] == [node.params for node in (middle.node, out.node)] == [None, None]
