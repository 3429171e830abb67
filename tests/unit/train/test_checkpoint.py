"""The file of a checkpoint: whole, or refused."""

import json

import numpy as np
import pytest

from sarlite import nn, optim
from sarlite.cli import folder, resume
from sarlite.comm import threads
from sarlite.errors import CheckpointError, PeerError
from sarlite.train import checkpoint, tensorfile

TENSORS = {"model.a": np.arange(60, dtype=np.float32).reshape(3, 20), "best.a": np.ones((3, 20), np.float32), "optimizer.n": np.int64(7)}
METADATA = {"epoch": 3, "text": 'a "quoted" word', "best": {"epoch": 2, "scores": {"val_loss": None}}}


@pytest.fixture
def path(tmp_path):
    checkpoint.save(tmp_path / "c.safetensors", TENSORS, METADATA)
    return tmp_path / "c.safetensors"


def _flips(data, n):
    """Bits of every region: the length of the header, the header, the digits of the checksum, the tensors."""
    end = 8 + int.from_bytes(data[:8], "little")
    at = data.index(b'"sha256":"')
    rng = np.random.default_rng(0)
    for low, high in ((0, 8), (8, end), (at, at + 76), (end, len(data))):
        for place in rng.integers(low, high, n):
            yield int(place), int(rng.integers(8))


def test_a_flipped_bit_is_refused(path):
    good = path.read_bytes()
    flips = [*((place, bit) for place in range(8) for bit in range(8)), *_flips(good, 105)]
    assert len(flips) == 64 + 420
    for place, bit in flips:
        data = bytearray(good)
        data[place] ^= 1 << bit
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=f"checkpoint {path}"):
            checkpoint.load(path)
    path.write_bytes(good)
    tensors, metadata = checkpoint.load(path)
    assert metadata == METADATA and all(np.array_equal(tensors[name], value) for name, value in TENSORS.items())


@pytest.mark.parametrize("change", [lambda d: d + b"\0", lambda d: d[:-1], lambda d: d[:7], lambda d: d[:8], lambda d: b"",
                                    lambda d: b"\xff" * 8 + d[8:], lambda d: d[:8] + b"[" * 100_000])  # fmt: skip
def test_what_is_longer_or_shorter_is_refused(path, change):
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CheckpointError, match=f"checkpoint {path}"):
        checkpoint.load(path)


def test_a_checksum_is_taken_in_bounded_memory(tmp_path, monkeypatch):
    path, reads = tmp_path / "c.safetensors", []
    checkpoint.save(path, {"model.a": np.zeros(3_000_000, np.float32)}, {})
    real = open

    def noted(*args, **options):
        file = real(*args, **options)

        class Noted:
            def read(self, n):
                reads.append(n)
                return file.read(n)

            def __enter__(self):
                return self

            def __exit__(self, *error):
                file.close()

            def fileno(self):
                return file.fileno()

            def seek(self, at):
                file.seek(at)

        return Noted()

    monkeypatch.setattr(tensorfile, "open", noted, raising=False)
    checkpoint.verify(path)
    assert max(reads) == 1 << 20 and len(reads) >= 12


def test_others_read_it(path):
    from safetensors.numpy import load_file

    assert np.array_equal(load_file(path)["model.a"], TENSORS["model.a"])


def test_metadata_are_read_without_the_arrays(path):
    assert checkpoint.load_metadata(path) == METADATA
    with pytest.raises(CheckpointError, match="no/c.safetensors"):
        checkpoint.load_metadata("/no/c.safetensors")


class _One(nn.Module):
    def __init__(self):
        self.linear = nn.Linear(3, 2, rng=nn.Random(0))


class _Trainer:
    def __init__(self, comm):
        self.comm, self.model, self.schedule = comm, _One(), optim.constant()
        self.flat = nn.flatten(self.model)
        self.optimizer, self.training_step = optim.SGD(self.flat, 0.1), type("Steps", (), {"n_steps": 0})


@pytest.mark.parametrize("error", [MemoryError("too large"), KeyError("x"), CheckpointError("no room")])
def test_any_error_of_rank_0_is_every_ranks(tmp_path, monkeypatch, error):
    """Else the others would wait for ever."""
    def fails(*args, **options):
        raise error

    def work(comm):
        expected = type(error) if comm.rank == 0 or isinstance(error, CheckpointError) else PeerError
        for call in ("TensorWriter", "_stored"):
            monkeypatch.setattr(checkpoint, call, fails)
        with pytest.raises(expected):
            checkpoint.write(tmp_path / "c", _Trainer(comm), {})
        with pytest.raises(expected):
            checkpoint.read(comm, tmp_path / "c")
        return comm.allgather(comm.rank)

    assert threads.run(3, work) == [[0, 1, 2]] * 3


def test_parameters_that_are_not_finite_are_not_written(tmp_path):
    def work(comm):
        trainer = _Trainer(comm)
        if comm.rank == 1:
            trainer.model.linear.bias.data[0] = np.nan
        with pytest.raises(CheckpointError, match="parameter 'linear.bias' is not finite"):
            checkpoint.write(tmp_path / "c", trainer, {})

    threads.run(2, work)
    assert not list(tmp_path.iterdir())


def test_the_base_of_a_resumed_run(tmp_path):
    for metadata, expected in (({"options": {"epochs": 3}}, {"epochs": 3}), ({}, {}), ({"options": [1]}, {})):
        checkpoint.save(tmp_path / "c", {}, metadata)
        assert resume.base(tmp_path / "c") == expected
    (tmp_path / "c").write_text("no checkpoint")
    assert resume.base(tmp_path / "c") == resume.base(tmp_path / "none") == {}


def test_metrics_keep_whole_lines_of_epochs_before(tmp_path):
    (tmp_path / "c").mkdir()
    path = tmp_path / "c" / folder.METRICS
    for start, epochs_left in ((3, [1, 2, 3]), (2, [1, 2]), (0, [])):
        path.write_text('{"epoch": 1}\n{"epoch": 2}\n{"epoch": 3}\n{"epo')
        assert [json.loads(line)["epoch"] for line in folder._lines_until(path, start)] == epochs_left
    path.write_text('{"epoch": 1}\n{"epoch" 2}\n{"epoch": 3}\n[]\n\n{"epoch": 4}\n')
    assert [json.loads(line)["epoch"] for line in folder._lines_until(path, 4)] == [1, 3, 4]


def test_what_does_not_fit_is_told_once_with_the_files_name():
    with pytest.raises(CheckpointError) as caught, checkpoint.errors_of("a/c"):
        raise CheckpointError("rank 1: rank 0: 'w' is missing from the checkpoint")
    assert str(caught.value) == "checkpoint a/c: 'w' is missing from the checkpoint"


@pytest.mark.parametrize("name, array, message", [
    ("words", np.array(["a"]), "tensor 'words' is <U1, but must be one of uint64"),
    ("swapped", np.ones(2, ">f4"), "tensor 'swapped' is >f4"),
    (1, np.ones(2), "1 cannot be the name"),
    ("__metadata__", np.ones(2), "'__metadata__' cannot be the name"),
])
def test_tensors_that_the_format_does_not_have_are_refused(tmp_path, name, array, message):
    with pytest.raises(CheckpointError, match=message):
        checkpoint.save(tmp_path / "some.safetensors", {"whole": np.ones(1), name: array}, {})
    assert not any(tmp_path.iterdir())
