"""Rows of all ranks in a checkpoint: piece by piece to rank 0's file and back, and never whole on a rank."""

import hashlib
import json
import os
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import save

from sarlite import nn, optim
from sarlite.comm import Solo, threads
from sarlite.errors import CheckpointError
from sarlite.train import checkpoint
from sarlite.train.owners import Owners
from tests.helpers.train.owned_rows import make

DIVISIONS = {
    "one": [np.array([4, 2, 9])],
    "uneven": [np.array([7, 1]), np.array([], int), np.array([3, 9, 2])],
    "none": [np.array([], int)] * 2,
    "far apart": [np.array([10**18, 5, -3]), np.array([0, 2**62])],
    "blocks": [np.arange(300), np.arange(300, 340), np.arange(340, 700)[::-1]],
    "mixed": np.array_split(np.random.default_rng(0).permutation(1000) * 7, [10, 500, 501]),
}


class Whole:
    """Tensor of rank 0 with the methods of a `tensorfile.Stored`."""

    def __init__(self, array):
        self.array, self.dtype, self.shape = array, array.dtype, array.shape

    def rows(self, begin, end):
        return self.array[begin:end].copy()


@pytest.mark.parametrize("division", DIVISIONS)
def test_pieces_are_small_and_by_ascending_id(division):
    ids = DIVISIONS[division]
    every = np.sort(np.concatenate(ids))

    def work(comm):
        local = ids[comm.rank]
        rows = np.stack([local, local % 10], 1)
        result = Owners(comm, local, "table")
        assert result.n == len(every)
        pieces = list(result.gather(rows))
        back = np.full_like(rows, -1)
        result.scatter(None if comm.rank else Whole(np.stack([every, every + 1], 1)), back)
        np.testing.assert_array_equal(back, np.stack([local, local + 1], 1))
        result.check(None if comm.rank else Whole(every))
        return pieces

    root, *others = threads.run(len(ids), work)
    assert all(piece is None for pieces in others for piece in pieces) and {len(pieces) for pieces in others} <= {len(root)}
    np.testing.assert_array_equal(np.concatenate([np.empty((0, 2), int), *root])[:, 0], every)
    assert max(map(len, root), default=0) <= max(len(ids), len(every) / 16)
    assert len(root) <= 40 * len(ids)


def test_an_id_of_two_owners_is_refused():
    def work(comm):
        with pytest.raises(CheckpointError, match="'table': id 1005 has two owners"):
            Owners(comm, np.append(np.arange(400) * 3 + comm.rank, 1005 if comm.rank else 5000), "table")
        return True

    assert threads.run(3, work) == [True] * 3


def told(stored_ids, here):
    """Return the part of the error that names the first difference between the checkpoint's ids and the ranks' ids."""
    if not np.array_equal(stored_ids, np.unique(stored_ids)):
        return "the checkpoint's ids do not ascend"
    odd = np.setxor1d(stored_ids, here).tolist()
    return odd and f"id {odd[0]} " + ("is missing from the checkpoint" if odd[0] in here else "belongs to no rank")


@pytest.mark.parametrize("seed", range(12))
def test_ids_that_differ_are_told(seed):
    rng = np.random.default_rng(seed)
    here = np.sort(rng.permutation(900)[:600])
    stored_ids = here.copy()
    places = rng.integers(0, 600, 2)
    if seed % 4 == 0:
        stored_ids = np.delete(stored_ids, places)
    elif seed % 4 == 1:
        stored_ids = np.unique(np.append(stored_ids, [*rng.integers(0, 900, 2), 1000]))
    elif seed % 4 == 2:
        stored_ids = stored_ids[: places[0]]
    else:
        stored_ids[places] = stored_ids[places[::-1]]
    expected = told(stored_ids, here)

    def work(comm):
        result = Owners(comm, here[comm.rank :: comm.size], "table")
        with pytest.raises(CheckpointError) as error:
            result.check(None if comm.rank else Whole(stored_ids))
        return str(error.value)

    for text in threads.run(3, work):
        assert f"'table': {expected}" in text


def set_state(trainer):
    """Values that depend on rows' ids alone, whoever has them."""
    for group, saved in zip(trainer.flat.groups, trainer.optimizer.states):
        if group.ids is not None:
            for number, array in enumerate([group.data, *saved.values()]):
                array[...] = np.sin(group.ids[:, None] + 1000 * number + np.arange(array.shape[1]))


def write(comm, path):
    trainer = make(comm)
    trainer.training_step.n_steps = 3
    set_state(trainer)
    checkpoint.write(path, trainer, {"note": 'a "word" é'}, {name: 2 * array for name, array in trainer.model.state_dict().items()})


@pytest.mark.parametrize("n_ranks", [2, 3, 4])
def test_the_file_of_any_number_of_ranks_is_the_same(n_ranks, tmp_path):
    write(Solo(), tmp_path / "one")
    threads.run(n_ranks, write, tmp_path / "many")
    digests = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("one", "many")]
    assert digests[0] == digests[1]
    checkpoint.verify(tmp_path / "many")


def by_the_library(path, tensors, metadata):
    """Write a checkpoint as sarlite did that gave the library whole arrays; the metadata are then in any order."""
    header = {"format": checkpoint.FORMAT, "sarlite": json.dumps(metadata), "sha256": "0" * 64}
    data = save({name: np.asarray(a, order="C") for name, a in tensors.items()}, header)
    path.write_bytes(data.replace(b'"sha256":"' + b"0" * 64, b'"sha256":"' + hashlib.sha256(data).hexdigest().encode()))


def parsed(path):
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"].pop("sha256")
    return end, list(header), header, data[end:]


def test_the_file_is_the_librarys(tmp_path):
    """Names, order, padding and bytes, of every dtype."""
    threads.run(3, write, tmp_path / "c")
    by_the_library(tmp_path / "d", *checkpoint.load(tmp_path / "c"))
    assert parsed(tmp_path / "c") == parsed(tmp_path / "d")
    arrays = {f"é{k}\"": np.ones((k, 2), dtype) for k, dtype in enumerate("?bBhHiIlLefd")}
    arrays |= {"turned": np.arange(6.0).reshape(2, 3).T, "none": np.zeros((0, 3), np.float32), "one": np.float64(2)}
    checkpoint.save(tmp_path / "e", arrays, {})
    by_the_library(tmp_path / "f", arrays, {})
    assert parsed(tmp_path / "e") == parsed(tmp_path / "f")


def test_a_file_of_the_library_is_restored(tmp_path):
    write(Solo(), tmp_path / "c")
    by_the_library(tmp_path / "d", *checkpoint.load(tmp_path / "c"))

    def work(comm):
        trainer, expected = make(comm, seed=9), make(comm)
        set_state(expected)
        best = checkpoint.restore_state(trainer, *checkpoint.read(comm, tmp_path / "d"))
        for name, array in expected.model.state_dict().items():
            np.testing.assert_array_equal(trainer.model.state_dict()[name], array)
            np.testing.assert_array_equal(best[name], 2 * array)
        for name, array in expected.optimizer.state_dict().items():
            np.testing.assert_array_equal(trainer.optimizer.state_dict()[name], array)

    threads.run(3, work)


@pytest.mark.parametrize("first", [0, 1])
def test_a_trial_writes_as_many_bytes_and_leaves_nothing(first, tmp_path, monkeypatch):
    """Also where rank 0 has no rows."""
    sizes, add = [], checkpoint.TensorWriter.add
    monkeypatch.setattr(checkpoint.TensorWriter, "add", lambda writer, array: (sizes.append(array.nbytes), add(writer, array)))

    def work(comm, trial):
        trainer = _Trainer(comm, 1, np.arange(comm.rank, 5000, comm.size) if comm.rank >= first else np.empty(0, np.int64))
        checkpoint.write(tmp_path / "c", trainer, {}, trainer.model.state_dict(), trial=trial)

    threads.run(3, work, True)
    assert os.listdir(tmp_path) == []
    tried = sum(sizes)
    sizes.clear()
    threads.run(3, work, False)
    assert tried == sum(sizes) == (tmp_path / "c").stat().st_size


# ---- memory


N, WIDTH, RANKS = 20_000, 64, 4


class Table(nn.Module):
    def __init__(self, ids, seed):
        self.table = nn.Embedding(ids, WIDTH, rng=nn.Random(seed), dtype=np.float64)


class _Trainer:
    def __init__(self, comm, seed, ids=None):
        ids = np.flatnonzero(np.random.default_rng(1).integers(0, RANKS, N) == comm.rank) if ids is None else ids
        self.comm, self.model, self.schedule = comm, Table(ids, seed), optim.constant()
        self.flat = nn.flatten(self.model)
        self.optimizer, self.training_step = optim.SGD(self.flat, 0.1, momentum=0.9), type("Steps", (), {"n_steps": 0})


class Small(threads.ThreadCommunicator):
    """Refuses messages of more than a piece."""

    def start_send(self, array, peer, tag=0):
        assert array.nbytes <= N * WIDTH * 8 / 16, array.shape
        return super().start_send(array, peer, tag)


def test_no_rank_has_all_rows(tmp_path, monkeypatch):
    """Writing and reading take less further memory, over all ranks, than a third of one tensor's rows."""
    monkeypatch.setattr(threads, "ThreadCommunicator", Small)
    tops = {}

    def traced(comm, name, action):
        comm.barrier()
        if comm.rank == 0:
            tracemalloc.start()
        comm.barrier()
        action()
        comm.barrier()
        if comm.rank == 0:
            tops[name] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        comm.barrier()

    def work(comm):
        trainer, other = _Trainer(comm, 1), _Trainer(comm, 2)
        traced(comm, "write", lambda: checkpoint.write(tmp_path / "c", trainer, {}))
        traced(comm, "read", lambda: checkpoint.restore_state(other, *checkpoint.read(comm, tmp_path / "c")))
        np.testing.assert_array_equal(other.model.table.weight.data, trainer.model.table.weight.data)
        return trainer.model.table.weight.data.nbytes

    n_bytes = sum(threads.run(RANKS, work))
    assert n_bytes == N * WIDTH * 8 and max(tops.values()) < n_bytes / 3, tops


# ---- what fails


def test_a_disk_that_fills_on_the_way_is_told_on_every_rank(tmp_path, monkeypatch):
    write(Solo(), tmp_path / "c")
    before, add, n = (tmp_path / "c").read_bytes(), checkpoint.TensorWriter.add, []

    def full(writer, array):
        n.append(array.nbytes)
        if len(n) == 20:
            raise OSError(28, os.strerror(28))
        add(writer, array)

    def fails(writer, array):
        with writer._named():
            full(writer, array)

    monkeypatch.setattr(checkpoint.TensorWriter, "add", fails)

    def work(comm):
        with pytest.raises(CheckpointError, match=f"checkpoint {tmp_path}/c: cannot be written: No space left"):
            write(comm, tmp_path / "c")
        return comm.allgather(comm.rank)

    assert threads.run(3, work) == [[0, 1, 2]] * 3
    assert (tmp_path / "c").read_bytes() == before and os.listdir(tmp_path) == ["c"]


def test_what_was_opened_is_read_whatever_takes_its_name(tmp_path):
    write(Solo(), tmp_path / "c")

    def work(comm):
        contents = checkpoint.read(comm, tmp_path / "c")
        comm.barrier()
        if comm.rank == 0:
            checkpoint.save(tmp_path / "c", {"model.a": np.zeros(3)}, {})
        comm.barrier()
        trainer, expected = make(comm, seed=9), make(comm)
        set_state(expected)
        checkpoint.restore_state(trainer, *contents)
        np.testing.assert_array_equal(trainer.model.table.weight.data, expected.model.table.weight.data)

    threads.run(2, work)


def test_a_file_cut_off_meanwhile_is_told_on_every_rank(tmp_path):
    write(Solo(), tmp_path / "c")

    def work(comm):
        contents = checkpoint.read(comm, tmp_path / "c")
        comm.barrier()
        if comm.rank == 0:
            os.truncate(tmp_path / "c", 20_000)
        comm.barrier()
        with pytest.raises(CheckpointError, match=f"checkpoint {tmp_path}/c: cannot be read: the file was truncated"):
            checkpoint.restore_state(make(comm), *contents)
        return True

    assert threads.run(2, work) == [True, True]
