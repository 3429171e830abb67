"""Pickles are read without running them, hold only allowed types, and take little memory in a small file."""

import pickle
import struct
import tracemalloc
from collections import defaultdict

import numpy as np
import pytest
import scipy.sparse

from sarlite.data import pickled
from sarlite.errors import DataError

ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"  # an empty array


def state(dtype=b"f4", shape=b"K\x02\x85", data=b"U\x08" + bytes(8), order=b"<"):
    """Return the pickle's instructions that fill an array."""
    kind = b"cnumpy\ndtype\nU" + bytes([len(dtype)]) + dtype + b"K\x00K\x01\x87R"
    kind += b"(K\x03U\x01" + order + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return b"(K\x01" + shape + kind + b"\x89" + data + b"tb"


@pytest.fixture
def read(tmp_path):
    def read(content):
        (tmp_path / "p").write_bytes(content)
        tracemalloc.start()
        try:
            return pickled.load(tmp_path / "p")
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < (1 << 20) + 100 * len(content), peak

    return read


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("dtype", ["f4", ">f8", "i8", "?", "u1"])
def test_arrays_are_read_from_their_pickles(read, protocol, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    for some in (array, np.asfortranarray(array), *([array[:0]] if protocol > 2 else [])):
        read_array = read(pickle.dumps(some, protocol))
        assert read_array.dtype == some.dtype and np.array_equal(read_array, some)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_matrices_and_dicts_of_lists(read, protocol):
    matrix = scipy.sparse.random(5, 4, 0.5, "csr", np.float32, np.random.default_rng(0))
    read_state = read(pickle.dumps(matrix, protocol)).state
    assert all(np.array_equal(read_state[name], getattr(matrix, name)) for name in ("data", "indices", "indptr"))
    graph = defaultdict(list, {node: list(range(node)) for node in range(300)})
    assert read(pickle.dumps(graph, protocol)) == dict(graph)


def test_an_array_by_hand(read):
    assert read(ARRAY + state() + b".").tolist() == [0, 0]


@pytest.mark.parametrize(
    "content, message",
    [
        (ARRAY + state(dtype=b"O8") + b".", "dtype 'O8'; numbers alone"),
        (ARRAY + state(dtype=b"O") + b".", "dtype 'O'; numbers alone"),
        (ARRAY + state(dtype=b"V8") + b".", "dtype 'V8'"),
        (ARRAY + state(dtype=b"f3") + b".", "cannot be read"),
        (ARRAY + state(data=b"]") + b".", "something other than numbers"),
        (ARRAY + state(data=b"](K\x01K\x02e") + b".", "something other than numbers"),
        (ARRAY + state(data=b"U\x07" + bytes(7)) + b".", r"shape \(2,\) and dtype float32 in 7 bytes"),
        (ARRAY + state(shape=b"J\xff\xff\xff\xff\x85") + b".", "whose shape is none"),
        (ARRAY + state(shape=b"\x8a\x08" + struct.pack("<q", 2**61) + b"\x85") + b".", "in 8 bytes"),
        (ARRAY + state(shape=b"]") + b".", "whose shape is none"),
        (b"c__builtin__\nlist\nU\x05aaaaa\x85R.", "calls something other"),
        (b"ccollections\ndefaultdict\ncnumpy\nndarray\n\x85R.", "a dict of something other than lists"),
        (b"cscipy.sparse.csr\ncsr_matrix\nK\x02\x85\x81.", "makes a matrix of arguments"),
        (b"cposix\nsystem\nU\x04true\x85R.", "asks for posix.system"),
        (b"cnumpy.core.multiarray\nscalar\n.", "asks for numpy.core.multiarray.scalar"),
        (b"}(" + b"(" + b"K\x01" + b"\x85" * 1000 + b"K\x01u.", "cannot be read"),
        (b"}" + b")" + b"\x85" * 200_000 + b"K\x01s.", "other than a dict's numbers or names"),
        (b"K\x01K\x02a.", "appends to something other than a list"),
        (b"]K\x01", "cannot be read"),
        (b"\x82\x01.", "instruction EXT1"),
        (b"h\x05.", "KeyError: 5"),
        (b"T\xff\xff\xff\x7fabc.", "cannot be read"),
        (b".", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_what_is_refused(read, content, message):
    with pytest.raises(DataError, match=f"p: pickle: .*{message}"):
        read(content)


def test_a_large_place_in_the_memo_takes_no_memory(read):
    assert read(b"\x80\x02]r" + struct.pack("<I", 1 << 28) + b"K\x07a.") == [7]


def test_one_text_that_is_encoded_often_takes_its_memory_once(read):
    text = b"X" + struct.pack("<I", 100_000) + b"a" * 100_000 + b"q\x00U\x06latin1q\x01c_codecs\nencode\nq\x02"
    assert len(read(text + b"(" + b"h\x02h\x00h\x01\x86R" * 10_000 + b"t.")) == 10_000


def test_lists_that_two_nodes_share_are_refused(tmp_path):
    from sarlite.data.readers.planetoid import _edges

    near = list(range(1000))
    (tmp_path / "g").write_bytes(pickle.dumps(dict.fromkeys(range(1000), near), 2))
    with pytest.raises(DataError, match="g: graph: two nodes share one list"):
        _edges(tmp_path / "g", 1000)
