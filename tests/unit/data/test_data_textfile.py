"""Columns of numbers from text and .npy files, and a user's partition."""

import gzip
import tracemalloc

import numpy as np
import pytest

from sarlite.data import textfile
from sarlite.data.tables.number_files import read_csv
from sarlite.data.textfile import read_parts
from sarlite.errors import DataError


def test_parts_are_read_from_npy_and_text(tmp_path):
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
        ("p.txt", "0\n1\n3\n", "p.txt: parts: node 2 has part 3, .*0 <= part < 3"),
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
    with pytest.raises(DataError, match="f.npy: parts: .*integer dtype.*float64"):
        read_parts(tmp_path / "f.npy", 3, 3)
    with pytest.raises(DataError, match="o.npy: parts: cannot be read"):
        read_parts(tmp_path / "o.npy", 3, 3)


def text(tmp_path, content, encoding="utf-8", field="edges", dtype=np.int64, **options):
    (tmp_path / "t.txt").write_bytes(content.encode(encoding))
    return textfile.read(tmp_path / "t.txt", field, dtype, **options)


@pytest.mark.parametrize("content", ["0,1\n2,3\n", "src,dst\n0,1\n2,3\n", '"src","dst"\n0,1\n2,3\n', "0 1\n2 3", "0,1\r\n2,3\r\n",
                                     "# a\n\nfrom to # b\n\n0 1 # c\n\n2\t3\n\n"])  # fmt: skip
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_numbers_are_read_from_any_text(tmp_path, content, encoding):
    assert text(tmp_path, content, encoding).tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "content, message",
    [
        ("0,x\n1,2\n", "t.txt: edges: .*could not convert string 'x'"),
        ("O 1\n1 2\n", "t.txt: edges: .*could not convert string 'O'"),
        ("0;1\n1,2\n", "t.txt: edges: cannot be read"),
        ("a,b,c\n1,2\n", "t.txt: edges: the first line, 'a,b,c', is not a header of 2 columns"),
        ("x\n1\n", "t.txt: edges: .*could not convert string 'x'"),
        ("nan,inf\n1,2\n", "t.txt: edges: cannot be read"),
        ("a,b\nc,d\n1,2\n", "t.txt: edges: .*could not convert string 'c'"),
        ("0,1\n2\n", "t.txt: edges: cannot be read"),
        ("0,1.5\n", "t.txt: edges: cannot be read"),
        ("0," + "9" * 30, "t.txt: edges: cannot be read"),
        ("0,\0\n", "t.txt: edges: cannot be read"),
    ],
)
def test_a_typing_error_is_no_header(tmp_path, content, message):
    with pytest.raises(DataError, match=message) as caught:
        text(tmp_path, content)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1200


def test_bytes_that_are_no_text(tmp_path):
    with pytest.raises(DataError, match="t.txt: edges: cannot be read: 'utf-8' codec"):
        text(tmp_path, "é 1\n", "latin1")


def test_a_line_without_end_is_refused_in_little_memory(tmp_path):
    """Some kilobytes of gzip hold one line of 256 MiB."""
    write = gzip.open(tmp_path / "edge.csv.gz", "wb", 9)
    for _ in range(16):
        write.write(b"1" * (1 << 24))
    write.close()
    assert (tmp_path / "edge.csv.gz").stat().st_size < 1 << 19
    tracemalloc.start()
    with pytest.raises(DataError, match="edge.csv.gz: a line of 16,777,216 characters"):
        read_csv(tmp_path / "edge.csv.gz", "edges", np.int64, n_rows=3, columns=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150 << 20, peak


def test_more_rows_than_there_may_be_are_not_read(tmp_path):
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(b"1\n" * (1 << 22)))
    with pytest.raises(DataError, match="train.csv.gz: train split: more than .*6 rows"):
        read_csv(tmp_path / "train.csv.gz", "train split", np.int64, columns=1, most=6)


def header(path, descr="<i8", shape=(3,), data=bytes(24), **changes):
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape, **changes})
        file.write(data)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"shape": (-1,)}, r"its shape is \(-1,\)"),
        ({"shape": (-1, -3)}, r"its shape is \(-1, -3\)"),
        ({"shape": (10**18,)}, "152 bytes, but its header needs 8000000000000000128: the file was cut"),
        ({"shape": (2**62, 8)}, "152 bytes, but its header needs"),
        ({"shape": (2,)}, "152 bytes, but its header needs 144"),
        ({"descr": "|O"}, "it holds Python objects, which are never read"),
        ({"descr": "<c8"}, "its dtype is complex64, expected numbers"),
        ({"descr": [("a", "<i4"), ("b", "<i4")]}, r"its dtype is \[\('a', '<i4'\), .*expected numbers"),
        ({"descr": "|S0"}, "its dtype is .*expected numbers"),
        ({"shape": (0, 10**18), "data": b""}, "cannot be read|expected"),
        ({"shape": (1, 1, 3)}, r"expected one or two dimensions, found shape \(1, 1, 3\)"),
    ],
)
def test_npy_headers_that_cannot_be(tmp_path, change, message):
    header(tmp_path / "a.npy", **change)
    with pytest.raises(DataError, match=f"a.npy: parts: .*{message}"):
        read_parts(tmp_path / "a.npy", 3, 2)


def test_every_flipped_byte_of_a_npy_file(tmp_path):
    """For some bytes the header's parser raises a TokenError or another error."""
    np.save(tmp_path / "a.npy", np.array([0, 1, 1]))
    content = (tmp_path / "a.npy").read_bytes()
    for at in range(len(content)):
        for bit in (1, 4, 32, 128):
            damaged = bytearray(content)
            damaged[at] ^= bit
            (tmp_path / "b.npy").write_bytes(damaged)
            try:
                assert read_parts(tmp_path / "b.npy", 3, 2).shape == (3,)
            except DataError as error:
                assert str(error).startswith(f"{tmp_path}/b.npy: parts: ") and "\n" not in str(error)


def test_a_missing_whole_number_is_refused_and_a_missing_float_is_nan(tmp_path):
    (tmp_path / "a.csv").write_text("1,2\n3,\n")
    with pytest.raises(DataError, match="a.csv: edges: row 1: no number"):
        read_csv(tmp_path / "a.csv", "edges", np.int64)
    assert np.array_equal(read_csv(tmp_path / "a.csv", "labels", np.float32), np.array([[1, 2], [3, np.nan]], np.float32), equal_nan=True)
