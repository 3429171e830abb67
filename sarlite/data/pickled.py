"""Pickles of arrays, sparse matrices and dicts of lists, read without running them.

`pickletools.genops` gives a pickle's instructions, and the machine here knows those that such pickles have. What they
make is a number, a text, a tuple, list or dict, or a stand-in of this module: no class and no function that the file
names is ever called, the memo is a dict, and an array is made of bytes whose number its dtype and shape must give. So a
file can take some 64 times its size in memory and nothing else.
"""

import io
import math
import pickletools
import re
import zipfile

import numpy as np

from sarlite.data.raw import check_room
from sarlite.errors import reading, regular

_MAX_DIMENSIONS = 8
_TORCH = 0x1950A86A20F9469CFC6C
_BYTES_A_BYTE = 64  # an empty list is one instruction of one byte


class Matrix:
    """Stands for SciPy's csr_matrix: `state` is the dict of its attributes."""

    state: dict | None = None


class _Array:
    value: np.ndarray | None = None


class _Dtype:
    def __init__(self, code):
        self.value = np.dtype(code)


class _Global(str):
    """A class or function that the file names."""


def load(path):
    """Return what a pickle holds; arrays are read-only.

    Raises
    ------
    DataError
        The file is damaged, or holds or asks for anything but arrays of numbers, csr matrices, and dicts and lists of
        plain values.
    """
    with reading(path, "pickle"):
        size = regular(path).stat().st_size
        check_room(_BYTES_A_BYTE * size, f"{path}: pickle")
        return _plain(_Machine(path.read_bytes()).run())


def load_saved(path):
    """Return the arrays by name of a dict that `torch.save` wrote, as a zip file or in the form before; read-only.

    Tensors are no arrays, and are refused, as `load` refuses them.

    Raises
    ------
    DataError
        As `load`; or the file is none of `torch.save`'s, or has no dict of arrays.
    """
    with reading(path, "dict of arrays"):
        size = regular(path).stat().st_size
        check_room(_BYTES_A_BYTE * size, f"{path}: dict of arrays")
        found = _Machine(_zipped(path, size) if zipfile.is_zipfile(path) else _fourth(path.read_bytes())).run()
        arrays = {name: _plain(value) for name, value in found.items()} if type(found) is dict else {}
        if not arrays or not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("it has no dict of NumPy arrays")
        return arrays


def _zipped(path, size):
    """The pickle in a zip file, whose members are stored as they are."""
    with zipfile.ZipFile(path) as archive:
        names = [info for info in archive.infolist() if info.filename.endswith("/data.pkl")]
        if len(names) != 1 or names[0].file_size > size:
            raise ValueError("it has no data.pkl that is stored as it is")
        return archive.read(names[0])


def _fourth(data):
    """The fourth of four pickles; the first three are a magic number, a version, and facts of the machine."""
    file, ends = io.BytesIO(data), [0]
    for _ in range(3):
        for _ in pickletools.genops(file):  # which ends behind a STOP
            pass
        ends.append(file.tell())
    if _Machine(data[: ends[1]]).run() != _TORCH:
        raise ValueError("it is no file of torch.save")
    return data[ends[3] :]


class _Machine:
    """Runs a pickle's instructions; an error of any kind means that it is none of those that are read."""

    def __init__(self, data):
        self.data, self.stack, self.marks, self.memo, self.encoded = data, [], [], {}, {}

    def run(self):
        for instruction, argument, _ in pickletools.genops(io.BytesIO(self.data)):
            name = instruction.name
            if name == "STOP":
                return self.stack.pop()
            if name in _PUSH:
                self.stack.append(argument)
            elif name in _MAKE:
                self.stack.append(_MAKE[name]())
            elif name in _STEPS:
                _STEPS[name](self, argument)
            else:
                raise ValueError(f"it has the instruction {name}; only NumPy and SciPy arrays and a dict of lists are "
                                 "read")
        raise ValueError("it does not end")

    def mark(self, _):
        self.marks.append(len(self.stack))

    def marked(self):
        """Take what stands above the last mark."""
        at = self.marks.pop()
        found, self.stack[at:] = self.stack[at:], []
        return found

    def last(self, n):
        found, self.stack[-n:] = self.stack[-n:], []
        if len(found) != n:
            raise ValueError("its stack is empty")
        return found

    def put(self, key):
        self.memo[key] = self.stack[-1]

    def named(self, module, name):
        if (module, name) not in _GLOBALS:
            raise ValueError(f"it asks for {module}.{name}; only NumPy and SciPy arrays and a dict of lists are read")
        self.stack.append(_Global(_GLOBALS[module, name]))

    def append(self, items):
        if type(self.stack[-1]) is not list:
            _refuse("appends to something other than a list")
        self.stack[-1].extend(items)

    def set_items(self, items):
        target, keys = self.stack[-1], items[::2]
        if type(target) is not dict or len(items) % 2 or any(type(key) not in (int, str) for key in keys):
            _refuse("sets something other than a dict's numbers or names")
        target.update(zip(keys, items[1::2]))

    def make_dict(self, _):
        items = self.marked()
        self.stack.append({})
        self.set_items(items)

    def call(self, _):
        function, arguments = self.last(2)
        if type(function) is not _Global or type(arguments) is not tuple or function not in _CALLS:
            _refuse("calls something other than an array's parts")
        self.stack.append(_CALLS[function](self, *arguments))

    def build(self, _):
        target, state = self.last(2)
        if type(target) is Matrix and type(state) is dict:
            target.state = state
        elif type(target) is _Dtype and type(state) is tuple:
            target.value = _ordered(target.value, state)
        elif type(target) is _Array and type(state) is tuple:
            target.value = self.filled(*state)
        else:
            _refuse("fills something other than an array or a matrix")
        self.stack.append(target)


    def as_bytes(self, text, encoding="latin1"):
        """Return the bytes that Python 2, and Python 3 in old pickles, wrote as text: one object for each text."""
        if type(text) is not str or encoding != "latin1":
            _refuse("encodes something other than bytes")
        if id(text) not in self.encoded:
            self.encoded[id(text)] = text, text.encode("latin1")
        return self.encoded[id(text)][1]

    def filled(self, version, shape, dtype, fortran, data):
        """Return the array of an array's state."""
        good = type(shape) is tuple and len(shape) <= _MAX_DIMENSIONS
        if not good or any(type(length) is not int or length < 0 for length in shape):
            _refuse("has an array whose shape is none")
        data = self.as_bytes(data) if type(data) is str else data
        if type(dtype) is not _Dtype or type(data) not in (bytes, bytearray):
            _refuse("has an array of something other than numbers")
        if len(data) != dtype.value.itemsize * math.prod(shape):
            _refuse(f"has an array of shape {shape} and dtype {dtype.value} in {len(data)} bytes")
        if not data:
            return np.empty(shape, dtype.value)
        return np.frombuffer(data, dtype.value).reshape(shape, order="F" if fortran else "C")


def _refuse(what):
    raise ValueError(f"it {what}")


def _plain(value):
    """Return the array or matrix, with its arrays, that a stand-in holds; any other value as it is."""
    if type(value) is Matrix:
        state = (value.state or {}).items()
        value.state = {name: _plain(item) if type(item) is _Array else item for name, item in state}
    return value.value if type(value) is _Array else value


def _new_array(_, *arguments):
    return _Array()


def _new_matrix(_, *arguments):
    if arguments:
        _refuse("makes a matrix of arguments")
    return Matrix()


def _new_dict(_, of):
    if type(of) is not _Global or of != "list":
        _refuse("makes a dict of something other than lists")
    return {}


def _new_dtype(_, code, *flags):
    if type(code) is not str or not re.fullmatch(r"[biuf]\d{1,2}", code):
        _refuse(f"has an array of dtype {code!r}; numbers alone are read")
    return _Dtype(code)


def _ordered(dtype, state):
    if len(state) < 5 or state[1] not in ("<", ">", "|", "=") or any(item is not None for item in state[2:5]):
        _refuse("has an array of a compound dtype; numbers alone are read")
    return dtype.newbyteorder(state[1]) if state[1] != "|" else dtype


_GLOBALS = {
    **{(module, "_reconstruct"): "array" for module in ("numpy.core.multiarray", "numpy._core.multiarray")},
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    **{(module, "csr_matrix"): "matrix" for module in ("scipy.sparse.csr", "scipy.sparse._csr")},
    **{(module, "list"): "list" for module in ("__builtin__", "builtins")},
    ("collections", "defaultdict"): "dict",
    ("_codecs", "encode"): "encode",
}
_CALLS = {"array": _new_array, "dtype": _new_dtype, "matrix": _new_matrix, "dict": _new_dict,
          "encode": _Machine.as_bytes}
_PUSH = {"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
         "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
         "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_MAKE = {"NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
         "EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}
_STEPS = {
    "PROTO": lambda m, _: None,
    "FRAME": lambda m, _: None,
    "MARK": _Machine.mark,
    "TUPLE": lambda m, _: m.stack.append(tuple(m.marked())),
    "TUPLE1": lambda m, _: m.stack.append(tuple(m.last(1))),
    "TUPLE2": lambda m, _: m.stack.append(tuple(m.last(2))),
    "TUPLE3": lambda m, _: m.stack.append(tuple(m.last(3))),
    "LIST": lambda m, _: m.stack.append(m.marked()),
    "DICT": _Machine.make_dict,
    "APPEND": lambda m, _: m.append(m.last(1)),
    "APPENDS": lambda m, _: m.append(m.marked()),
    "SETITEM": lambda m, _: m.set_items(m.last(2)),
    "SETITEMS": lambda m, _: m.set_items(m.marked()),
    "GLOBAL": lambda m, name: m.named(*name.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.named(*m.last(2)),
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "BUILD": _Machine.build,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.put),
    "MEMOIZE": lambda m, _: m.put(len(m.memo)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda m, key: m.stack.append(m.memo[key])),
}
