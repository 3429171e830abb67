"""Columns of numbers and names from text and .npy files, and a user's partition."""

import numpy as np
import pytest

from sarlite.data.table import read_parts
from sarlite.errors import DataError


def test_read_parts(tmp_path):
    parts = np.array([0, 2, 1, 0])
    np.save(tmp_path / "p.npy", parts)
    np.savetxt(tmp_path / "p.txt", parts, fmt="%d")
    for name in ("p.npy", "p.txt"):
        read = read_parts(tmp_path / name, 4, 3)
        assert read.dtype == np.int32 and np.array_equal(read, parts)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("p.txt", "0\n1\n", r"p.txt: parts: expected shape \(3,\)"),
        ("p.txt", "0\n1\n3\n", "p.txt: parts: node 2 has part 3, outside 0 <= part < 3"),
        ("p.txt", "0\n-1\n1\n", "p.txt: parts: node 1 has part -1"),
        ("p.txt", "0\nx\n1\n", "p.txt: parts: cannot be read"),
        ("p.txt", "", "p.txt: parts: expected shape"),
        ("p.npy", "no array", "p.npy: parts: cannot be read"),
        ("gone.txt", None, "gone.txt: parts: no such file"),
    ],
)
def test_bad_parts_are_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read_parts(tmp_path / name, 3, 3)


def test_parts_of_floats_and_objects_are_refused(tmp_path):
    np.save(tmp_path / "f.npy", np.zeros(3))
    np.save(tmp_path / "o.npy", np.array([{}, {}, {}]), allow_pickle=True)
    with pytest.raises(DataError, match="f.npy: parts: expected an integer dtype, found float64"):
        read_parts(tmp_path / "f.npy", 3, 3)
    with pytest.raises(DataError, match="o.npy: parts: cannot be read"):
        read_parts(tmp_path / "o.npy", 3, 3)
