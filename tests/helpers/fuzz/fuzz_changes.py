"""Random damage to files, for `fuzz.py`: changes bytes, numbers, header fields or whole files, also inside archives."""

import gzip
import hashlib
import io
import json
import re
import warnings
import zipfile

import numpy as np

from sarlite.data.writer import meta_hash

WHOLE = (-1, -5, 0, 1, 2, 3, 7, 255, 10**6, 2**31, 2**32, 10**12, 2**62, 2**63 - 1, 2**63, 2**64, 10**30)
NUMBERS = [*map(str, WHOLE), "9" * 5000, "nan", "-inf", "1e400", "1.5", "0x10", "1_0", "true", "None", ""]
INSERTS = [b"\xef\xbb\xbf", b"\0", b"\xff\xfe", b"\x1b[31m", "é１".encode(), b"[" * 100_000, b"{\"a\":" * 20_000, b"a" * 10_000,
           b"9" * 10_000, b"\n", b"\n\n", b",", b" ", b"#", b"'", b"\"", b"=", b"-", b".", b"\r", b"1L",
           b"r\0\0\0\x10", b"\x94", b"(", b"R", b"b", b"0" * 9]  # fmt: skip
JSON = [None, True, -1, 0, 1, 10**12, 2**63, 10**30, 1.5, float("nan"), float("inf"), "", "x" * 10_000, "\x1b[2J", [], [0], {}, {"0": 1},
        "<f8", "|O", [-1], [2**62, 2**62]]  # fmt: skip
DTYPES = ["<f4", "<f8", ">f8", "<f2", "<f16", "<c8", "<i4", "<i8", "<u8", "|i1", "|u1", "|b1", "<U5", "|S0", "|O", "|V8",
          "<M8[s]", "<i4,<f4", "f"]  # fmt: skip


def changed(files, rng):
    """Return `files`, {name: content}, after one to three random changes; content None stands for a folder, "fifo" for a named pipe."""
    files = dict(files)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        name = rng.choice(sorted(files))
        if not isinstance(files[name], bytes):
            continue
        if rng.random() < 0.03 and name != "specs":
            files[name] = rng.choice([b"", None, "fifo", "gone", rng.choice([c for c in files.values() if isinstance(c, bytes)])])
        else:
            files[name] = _within(name, files[name], rng)
    if "d/meta.json" in files and isinstance(files["d/meta.json"], bytes) and rng.random() < 0.7:
        files["d/meta.json"] = _honest(files, rng)
    return files


def _within(name, content, rng):
    """Return the content of file `name` with a random change, mostly inside its container (gzip, zip, JSON) with valid checksums."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if rng.random() < 0.3:
            return _bytes(content, rng)
        try:
            if name.endswith(".gz"):
                inner = b"1,2\n" * (1 << 22) if rng.random() < 0.01 else _bytes(gzip.decompress(content), rng)
                return gzip.compress(inner, 1, mtime=0)
            if name.endswith(".npz"):
                return _archive(content, rng)
            if name.endswith(".npy"):
                return _npy(content, rng)
            if name.endswith(".json"):
                return json.dumps(_json(json.loads(content), rng)).encode()
            if name.endswith(".safetensors"):
                return _safetensors(content, rng)
        except Exception:  # noqa: BLE001
            pass  # an earlier change damaged the archive
    return _bytes(content, rng)


def _bytes(content, rng):
    at, change = rng.randrange(len(content) + 1), rng.randrange(6)
    if change == 0 and content:
        content = bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 8))):
            content[rng.randrange(len(content))] ^= rng.choice((1, 2, 4, 8, 16, 32, 64, 128, 255))
        return bytes(content)
    if change == 1:
        return content[:at]
    if change == 2:
        return content[:at] + content[at + rng.choice((1, 2, 4, 8, 64)) :]
    if change == 3:
        return content[:at] + content[max(0, at - rng.choice((1, 2, 8, 100))) :]
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?", content))
    if change == 4 and numbers:
        number = rng.choice(numbers)
        return content[: number.start()] + rng.choice(NUMBERS).encode() + content[number.end() :]
    return content[:at] + rng.choice(INSERTS) + content[at:]


def _archive(content, rng):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(members))
    if rng.random() < 0.1:
        del members[name]
    else:
        members[name] = _npy(members[name], rng) if rng.random() < 0.8 else _bytes(members[name], rng)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return out.getvalue()


def _npy(npy_bytes, rng):
    """Return the content of a .npy file, `npy_bytes`, with a random value or header field changed, and a fitting size if possible."""
    array = np.load(io.BytesIO(npy_bytes), allow_pickle=False)
    if rng.random() < 0.4 and array.size:
        if array.dtype == bool and rng.random() < 0.5:
            array = array.view(np.uint8)
            array.flat[rng.randrange(array.size)] = 2
            return _packed(array.tobytes(), "|b1", array.shape, False)
        extremes = [0, 1, 2, -1, 100, np.nan, np.inf, 2.5, 2**62, 10**9, -(2**63)]
        array.flat[rng.randrange(array.size)] = np.array(rng.choice(extremes)).astype(array.dtype)
        return _packed(array.tobytes(), array.dtype.str, array.shape, False)
    dtype, shape, data = array.dtype.str, list(array.shape), array.tobytes()
    what = rng.randrange(4)
    if what == 0:
        dtype = rng.choice(DTYPES)
        if rng.random() < 0.6 and np.dtype(dtype).kind in "biufU":
            data = array.astype(dtype).tobytes()
    elif what == 1 and shape:
        shape[rng.randrange(len(shape))] = rng.choice((-1, 0, 1, 2, 10**6, 2**31, 2**62, 10**18, True, 10**30))
    elif what == 2:
        shape = rng.choice(([], [array.size], [-1], [*shape, 1], [1, *shape], shape[::-1], [0, 10**18], [10**18, 0], [2, 2]))
    size = max(0, int(np.prod([int(length) for length in shape], dtype=object)))
    if rng.random() < 0.7 and size * np.dtype(dtype).itemsize < 1 << 20:
        data = (data * (1 + size))[: size * np.dtype(dtype).itemsize]
    return _packed(data, dtype, shape, what == 3)


def _packed(data, dtype, shape, fortran):
    out = io.BytesIO()
    descr = np.dtype(dtype).descr if "," in dtype else dtype
    np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": fortran, "shape": tuple(shape)})
    return out.getvalue() + data


def _json(value, rng):
    """Return the JSON value `value` with one random entry, at any depth, replaced or removed."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value)) if isinstance(value, dict) else rng.randrange(len(value))
        if rng.random() < 0.1:
            del value[key]
        else:
            value[key] = _json(value[key], rng)
        return value
    return rng.choice(JSON)


def _honest(files, rng):
    """Return meta.json as bytes with the hashes, dtypes and shapes of the changed `files` written into it, except for a random few.

    Its own hash is right, too, so that a reader's later checks are reached.
    """
    try:
        meta = json.loads(files["d/meta.json"])
        for kind in ("nodes", "edges"):
            for key, place in meta[kind].items():
                for name, record in place["arrays"].items():
                    content = files.get(f"d/{kind}/{key}/{name}.npy")
                    if isinstance(content, bytes) and rng.random() < 0.95:
                        record["sha256"] = hashlib.sha256(content).hexdigest()
                        file = io.BytesIO(content)
                        np.lib.format.read_magic(file)
                        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                        record["dtype"], record["shape"] = dtype.str, list(shape)
    except Exception:  # noqa: BLE001, whatever was made of it before
        pass
    try:
        meta.pop("sha256", None)
        return json.dumps({**meta, "sha256": meta_hash(meta)}).encode()
    except Exception:  # noqa: BLE001
        return files["d/meta.json"]


def _safetensors(content, rng):
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    inner = header["__metadata__"]["sarlite"]
    change = rng.randrange(3)
    if change == 0:
        header["__metadata__"]["sarlite"] = json.dumps(_json(json.loads(inner), rng))
    elif change == 1:
        header["__metadata__"]["sarlite"] = _bytes(inner.encode(), rng).decode("utf-8", "replace")
    else:
        header = _json(header, rng)
    packed = json.dumps(header).encode()
    return len(packed).to_bytes(8, "little") + packed + content[8 + length :]
