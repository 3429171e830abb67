"""Cases as files: a written case is read back bit for bit, and manipulated files are refused before arrays are read."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

from sarlite.errors import DataError
from sarlite.oracle import check, load, npy, replay, sarcase, save
from sarlite.oracle.case import Case
from sarlite.oracle.edge_structure import EdgeList
from sarlite.oracle.finding import Finding, Verdict
from tests.helpers.oracle.oracle_candidates import plain, plain_vjp

RNG = np.random.default_rng(0)
EDGES = EdgeList([0, 2, 2, 1], [1, 0, 0, 1], 3, 2)


def a_case(**changes):
    x = RNG.standard_normal((3, 5)).astype(np.float32)
    x[0, 0], x[1, 1], x[2, 2] = np.nan, -0.0, np.inf
    state = {"layers.0.weight": np.asfortranarray(RNG.standard_normal((5, 2)).astype(np.float32))}
    fields = {"arrays": {"x": x, "mask": np.array([1, 0, 1, 1], bool)}, "state": state, "index_dtype": "int32",
             "attributes": {"reduce": "mean", "slope": 0.2, "sizes": (3, (4, 5)), "bias": None}}
    return Case("star/codes", "spmm", EDGES, **{**fields, **changes})


def a_finding(case):
    return Finding(Verdict.WRONG, "probe", case, "out", "edge 1 (2 -> 0) is lost", node=0, column=3, edges=((2, 0),), expected=np.inf,
                   got=float("nan"), bound=1e-7)


def same(a, b):
    return {k: (v.dtype, v.shape, v.tobytes()) for k, v in a.items()} == {k: (v.dtype, v.shape, v.tobytes()) for k, v in b.items()}


def test_a_saved_case_is_loaded_bit_for_bit(tmp_path):
    case = a_case()
    out = {"out": RNG.standard_normal((2, 5))}
    saved = sarcase.SavedCase(case, {"out": np.ones((2, 5), np.float32)}, {**out, "dx": np.float64(3.0)}, out, out, a_finding(case))
    for _ in range(2):  # what stands there is replaced
        loaded = sarcase.load(sarcase.save(saved, tmp_path / "new" / "failure.sarcase", overwrite=True))
    assert os.listdir(tmp_path / "new") == ["failure.sarcase"]
    assert all(np.array_equal(getattr(loaded.case.edges, end), getattr(EDGES, end)) for end in ("src", "dst"))
    assert (loaded.case.n_src, loaded.case.n_dst) == (3, 2)
    for name in ("name", "op", "dtype", "accumulate", "index_dtype", "attributes"):
        assert getattr(loaded.case, name) == getattr(case, name)
    assert same(loaded.case.arrays, case.arrays) and same(loaded.case.state, case.state)
    assert same(loaded.cotangents, saved.cotangents) and same(loaded.bounds, out) and same(loaded.got, out)
    assert loaded.expected["dx"].shape == () and loaded.expected["dx"] == 3
    assert str(loaded.finding) == str(saved.finding) and loaded.finding.edges == ((2, 0),)


def test_a_case_without_an_array_of_its_operation_is_refused(tmp_path):
    save(a_case(arrays={"y": np.ones((3, 5), np.float32)}, state={}, attributes={"reduce": "mean"}), tmp_path / "c")
    with pytest.raises(DataError, match=f"{tmp_path / 'c'}: arrays: cannot be read: KeyError: 'x'"):
        replay(tmp_path / "c", plain)


def test_a_failed_save_leaves_no_files(tmp_path):
    (tmp_path / "other").mkdir()
    bad = ({"attributes": {"reduce": np.add}}, {"attributes": {"slope": np.nan}}, {"state": {"../w": np.ones(3)}},
           {"arrays": {"x": np.array([None])}})
    for change in bad:
        with pytest.raises(DataError):
            sarcase.save(a_case(**change), tmp_path / "case")
    with pytest.raises(DataError, match="exists already and is not a case"):
        sarcase.save(a_case(), tmp_path / "other")
    assert os.listdir(tmp_path) == ["other"]


def change_json(folder, **changes):
    path = folder / "case.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def record(folder, **changes):
    arrays = json.loads((folder / "case.json").read_text())["arrays"]
    change_json(folder, arrays={**arrays, "x": {**arrays["x"], **changes}})


def header(folder, shape, dtype="<f4", size=None):
    """Write a .npy header without data, and return a record that agrees with it."""
    with open(folder / "arrays.x.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
        file.truncate(size)
    record(folder, shape=list(shape), dtype=dtype)


def pickled(folder):
    np.save(folder / "arrays.x.npy", np.array([{}], object), allow_pickle=True)
    record(folder, dtype="|O", shape=[1])


def linked(folder):
    (folder / "arrays.x.npy").rename(folder.parent / "outside.npy")
    (folder / "arrays.x.npy").symlink_to(folder.parent / "outside.npy")


def piped(folder):
    (folder / "arrays.x.npy").unlink()
    os.mkfifo(folder / "arrays.x.npy")


def flipped(folder):
    content = bytearray((folder / "arrays.x.npy").read_bytes())
    content[-1] ^= 1
    (folder / "arrays.x.npy").write_bytes(content)


def finding(folder, **changes):
    change_json(folder, finding={**json.loads((folder / "case.json").read_text())["finding"], **changes})


HOSTILE = {
    "path": (lambda d: record(d, file="../outside.npy"), r"arrays.x: '../outside.npy' is not a plain name"),
    "absolute path": (lambda d: record(d, file="/etc/passwd"), "'/etc/passwd' is not a plain name"),
    "no name": (lambda d: record(d, file=3), "arrays.x: 3 is not a plain name"),
    "name of an array": (lambda d: change_json(d, state={"../x": {}}), "state: '../x' is not a plain name"),
    "link": (linked, "arrays.x: it is a symbolic link"),
    "pipe": (piped, "arrays.x: cannot be read: it is not a regular file"),
    "missing": (lambda d: (d / "arrays.x.npy").unlink(), "no such file"),
    "hash": (flipped, "arrays.x: sha256 .* the file was changed"),
    "hash in the record": (lambda d: record(d, sha256="0"), "case.json says 0"),
    "cut": (lambda d: os.truncate(d / "arrays.x.npy", 140), "140 bytes, but its header needs 188"),
    "huge": (lambda d: header(d, (1 << 40, 1 << 10)), "arrays.x: 128 bytes, but its header needs 4503599627370624"),
    "huge and there": (lambda d: header(d, (1 << 32,), size=(1 << 34) + 128), "bytes, at most 4294967296"),
    "negative": (lambda d: header(d, (-1, -1)), "arrays.x"),
    "pickle": (pickled, r"arrays.x: dtype \|O"),
    "text": (lambda d: header(d, (1,), "<U1"), "arrays.x: dtype <U1"),
    "shape": (lambda d: record(d, shape=[5, 3]), r"<f4 \[3, 5\], but case.json says <f4 \[5, 3\]"),
    "dtype": (lambda d: record(d, dtype="<f8"), r"case.json says <f8"),
    "no record": (lambda d: change_json(d, arrays={"x": 3}), "arrays.x is not a record"),
    "record of more": (lambda d: record(d, offset=3), "an array has file, dtype, shape and sha256"),
    "edges outside": (lambda d: change_json(d, n_src=2), "src: row numbers"),
    "rows": (lambda d: change_json(d, n_dst=1 << 50), "n_dst is 1125899906842624, at most"),
    "rows of text": (lambda d: change_json(d, n_dst="3"), "n_dst is '3', but must be a whole number"),
    "rows of bool": (lambda d: change_json(d, n_dst=True), "n_dst is True"),
    "unknown field": (lambda d: change_json(d, code="import os"), "code is not a known field"),
    "unknown field of the finding": (lambda d: finding(d, run="x"), "finding.run is not a known field"),
    "verdict": (lambda d: finding(d, verdict="FINE"), "finding.verdict is 'FINE'"),
    "edges of the finding": (lambda d: finding(d, edges=[["a", "b"]]), "finding.edges is 'a'"),
    "schema": (lambda d: change_json(d, schema=2), "schema is 2, this version reads 1"),
    "precision": (lambda d: change_json(d, dtype="float128"), "dtype is 'float128', expected one of float64"),
    "operation": (lambda d: change_json(d, op=["spmm"]), "op is"),
    "attributes": (lambda d: change_json(d, attributes=3), "attributes is 3"),
    "no JSON": (lambda d: (d / "case.json").write_text("{"), "case.json: cannot be read"),
    "a list": (lambda d: (d / "case.json").write_text("[]"), "case.json is not an object"),
    "deep": (lambda d: (d / "case.json").write_text("[" * 100_000), "case.json: cannot be read: RecursionError"),
    "twice": (lambda d: (d / "case.json").write_text('{"op": 1, "op": 2}'), "a field occurs twice"),
    "NaN": (lambda d: (d / "case.json").write_text('{"op": NaN}'), "NaN is not a number of JSON"),
    "long": (lambda d: os.truncate(d / "case.json", 1 << 25), "more than 16777216 bytes"),
    "not there": (lambda d: shutil.rmtree(d), "case.json: no such file|no such file"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_cases_are_refused(name, tmp_path, monkeypatch):
    change, message = HOSTILE[name]
    path = sarcase.save(a_finding(a_case()), tmp_path / "case")
    change(path)
    read = []  # what was read whole before the refusal
    monkeypatch.setattr(npy.Path, "read_bytes", lambda path: read.append(path.name) or path.open("rb").read())
    with pytest.raises(DataError, match=message) as raised:
        sarcase.load(path)
    assert "\n" not in str(raised.value) and str(path) in str(raised.value)
    assert "arrays.x.npy" not in read or "hash" in name or "arrays.x" not in str(raised.value)
    assert "huge" not in name or read == ["case.json"] or read == ["case.json", "src.npy", "dst.npy"]


@pytest.mark.parametrize("level", ["probe", "certified"])
def test_a_failing_gradient_is_saved_with_its_cotangents_and_replayed_with_them(tmp_path, level):
    asked = []

    def vjp(case, g, factor=1):
        asked.append(np.array(g))
        return {"x": plain_vjp(case, g)["x"] * np.float32(factor)}

    report = check(plain, "spmm", vjp=lambda case, g: vjp(case, g, 2), level=level, seed=3, graphs="uniform-100-250")
    saved = load(report.save(tmp_path / "failure.sarcase"))
    got, expected, bound = saved.got["dx"], saved.expected["dx"], saved.bounds["dx"]
    place = saved.finding.node, saved.finding.column
    assert got.shape == expected.shape == bound.shape == saved.case.x.shape and got.dtype == np.float32
    assert abs(got[place] - expected[place]) > bound[place] and (got[place], expected[place]) == (saved.finding.got, saved.finding.expected)
    np.testing.assert_array_equal(got, 2 * vjp(saved.case, saved.cotangents["out"])["x"])
    asked.clear()
    assert replay(tmp_path / "failure.sarcase", plain, vjp=lambda case, g: vjp(case, g, 2)).verdict is Verdict.WRONG
    replay(tmp_path / "failure.sarcase", plain, vjp=vjp).require()
    assert len(asked) >= 4 and all(np.array_equal(g, saved.cotangents["out"]) for g in asked)
    save(replace(saved, cotangents={"out": np.ones((1, 1), np.float32)}), tmp_path / "failure.sarcase", overwrite=True)
    with pytest.raises(DataError, match="failure.sarcase: cotangents are of shape"):
        replay(tmp_path / "failure.sarcase", plain, vjp=vjp)
