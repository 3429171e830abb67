"""Reader of pickles of arrays, sparse matrices and dicts of lists that executes no code of the pickle.

`pickletools.genops` parses the instructions of a pickle, and `_Machine` interprets the instructions that such pickles
contain. A result is a number, a text, a tuple, a list, a dict, or a stand-in of this module. No class and no function
that the file names is ever called. An array is built from bytes whose number must fit its dtype and shape. So the worst
that a malicious file can do is to take about 64 times its size in memory.
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
_BYTES_A_BYTE = 64  # most memory per byte of a file: an instruction of one byte makes an empty list


class PickledMatrix:
    """Stand-in for SciPy's csr_matrix. `state` is the dict of the matrix's attributes."""

    state: dict | None = None


class _Array:
    """Stand-in for a NumPy array in a pickle; `value` is None until the instruction with the array's content was run."""

    value: np.ndarray | None = None


class _Dtype:
    """Stand-in for a NumPy dtype in a pickle."""

    def __init__(self, code):
        self.value = np.dtype(code)


class _Global(str):
    """Stand-in for a class or function that a pickle names."""


def load(path):
    """Return the arrays, matrices, dicts and lists of a pickle file without executing its code; arrays are read-only.

    Parameters
    ----------
    path : path

    Raises
    ------
    DataError
        If the file is damaged, or contains anything but arrays of numbers, CSR matrices, and dicts and lists of plain
        values.
    """
    with reading(path, "pickle"):
        size = regular(path).stat().st_size
        check_room(_BYTES_A_BYTE * size, f"{path}: pickle")
        return _plain(_Machine(path.read_bytes()).run())


def load_saved(path):
    """Return {name: read-only array} from the file `path`, which `torch.save` wrote from a dict of NumPy arrays.

    Both the zip format and the older format of `torch.save` are read. Tensors are refused, as the dict must hold NumPy
    arrays.

    Parameters
    ----------
    path : path

    Raises
    ------
    DataError
        As `load`; also if `torch.save` did not write the file, or the file has no dict of arrays.
    """
    with reading(path, "dict of arrays"):
        size = regular(path).stat().st_size
        check_room(_BYTES_A_BYTE * size, f"{path}: dict of arrays")
        content = _Machine(_zipped(path, size) if zipfile.is_zipfile(path) else _last_pickle(path.read_bytes())).run()
        arrays = {name: _plain(value) for name, value in content.items()} if type(content) is dict else {}
        if not arrays or not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("it has no dict of NumPy arrays")
        return arrays


def _zipped(path, size):
    """Return the bytes of the pickle in a zip file of `torch.save`; the file has `size` bytes and must be uncompressed."""
    with zipfile.ZipFile(path) as archive:
        names = [info for info in archive.infolist() if info.filename.endswith("/data.pkl")]
        if len(names) != 1 or names[0].file_size > size:
            raise ValueError("it has no data.pkl that is stored as it is")
        return archive.read(names[0])


def _last_pickle(data):
    """Return the bytes of the last of the four pickles in `data`, the content of a file of `torch.save`'s older format. The first three are
    a magic number, a version, and facts about the machine.
    """
    file, ends = io.BytesIO(data), [0]
    for _ in range(3):
        for _ in pickletools.genops(file):  # `file` then stands behind the instruction STOP
            pass
        ends.append(file.tell())
    if _Machine(data[: ends[1]]).run() != _TORCH:
        raise ValueError("it is not a file of torch.save")
    return data[ends[3] :]


class _Machine:
    """Interpreter of the instructions of a pickle, which builds arrays and plain objects only. Any exception that it raises means that the
    pickle is refused.
    """

    def __init__(self, data):
        self.data, self.stack, self.marks, self.memo, self.encoded = data, [], [], {}, {}

    def run(self):
        """Return the object that the pickle builds."""
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
                raise ValueError(f"it has the instruction {name}; only NumPy arrays, SciPy matrices and a dict of lists are read")
        raise ValueError("it does not end")

    def mark(self, _):
        self.marks.append(len(self.stack))

    def marked(self):
        """Pop the stack's items above the last mark, and the mark; return the items."""
        at = self.marks.pop()
        items, self.stack[at:] = self.stack[at:], []
        return items

    def last(self, n):
        """Pop the last n items of the stack and return them."""
        items, self.stack[-n:] = self.stack[-n:], []
        if len(items) != n:
            raise ValueError("its stack is empty")
        return items

    def put(self, key):
        self.memo[key] = self.stack[-1]

    def named(self, module, name):
        if (module, name) not in _GLOBALS:
            raise ValueError(f"it asks for {module}.{name}; only NumPy arrays, SciPy matrices and a dict of lists are read")
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
        if type(target) is PickledMatrix and type(state) is dict:
            target.state = state
        elif type(target) is _Dtype and type(state) is tuple:
            target.value = _ordered(target.value, state)
        elif type(target) is _Array and type(state) is tuple:
            target.value = self.filled(*state)
        else:
            _refuse("fills something other than an array or a matrix")
        self.stack.append(target)

    def as_bytes(self, text, encoding="latin1"):
        """Return the bytes that an old pickle protocol stored as `text`, one latin-1 character per byte. The result is cached per text
        object.
        """
        if type(text) is not str or encoding != "latin1":
            _refuse("encodes something other than bytes")
        if id(text) not in self.encoded:
            self.encoded[id(text)] = text, text.encode("latin1")
        return self.encoded[id(text)][1]

    def filled(self, version, shape, dtype, fortran, data):
        """Return the array that a pickled state describes: `data`, bytes, as `dtype` in `shape`, in Fortran order if `fortran`. Raise a
        ValueError if they do not fit. `version`, the format number of the state, is not used.
        """
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
    """Return the array or matrix that a stand-in represents; any other value unchanged."""
    if type(value) is PickledMatrix:
        state = (value.state or {}).items()
        value.state = {name: _plain(item) if type(item) is _Array else item for name, item in state}
    return value.value if type(value) is _Array else value


def _new_array(_, *arguments):
    return _Array()


def _new_matrix(_, *arguments):
    if arguments:
        _refuse("makes a matrix of arguments")
    return PickledMatrix()


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
_CALLS = {"array": _new_array, "dtype": _new_dtype, "matrix": _new_matrix, "dict": _new_dict, "encode": _Machine.as_bytes}
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
