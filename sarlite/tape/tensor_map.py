"""Mapping with tensors as keys, which does not keep the tensors alive."""

import weakref


class TensorMap:
    """Mapping from tensors, compared by identity, to values. An entry is removed when its tensor is freed.

    `WeakKeyDictionary` compares keys by `==`, which is elementwise for tensors.

    Examples
    --------
    >>> import numpy as np
    >>> from sarlite.tape import Tensor
    >>> sums, x = TensorMap(), Tensor(np.ones(2))
    >>> sums[x] = "sum"
    >>> sums[x], len(sums)
    ('sum', 1)
    >>> del x
    >>> len(sums)
    0
    """

    def __init__(self):
        # id -> (weak reference, value); the reference's callback removes the entry before the id can be used again
        self._entries = {}

    def __len__(self):
        return len(self._entries)

    def __contains__(self, tensor):
        return id(tensor) in self._entries

    def __getitem__(self, tensor):
        return self._entries[id(tensor)][1]

    def __setitem__(self, tensor, value):
        key, entries = id(tensor), self._entries
        self._entries[key] = weakref.ref(tensor, lambda _: entries.pop(key, None)), value

    def setdefault(self, tensor, value):
        """Return the value of `tensor`; if there is none, store `value` and return it."""
        if tensor not in self:
            self[tensor] = value
        return self[tensor]
