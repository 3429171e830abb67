"""A dict from tensors that keeps none of them alive."""

import weakref


class TensorMap:
    """Mapping from tensors, compared by identity, to values. An entry lives as long as its tensor.

    `WeakKeyDictionary` cannot be used, because it compares by `==`, which is elementwise for tensors.
    """

    def __init__(self):
        # id -> (reference, value); as the tensor ends, the reference removes the entry, before the id is used again
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
        """Return the tensor's value; store `value` first if the tensor has none."""
        if tensor not in self:
            self[tensor] = value
        return self[tensor]
