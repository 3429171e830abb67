"""The next run removes the scratch of a dead process, and data sets that are read or replaced are locked."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from sarlite.cli.data_command import main
from sarlite.comm import threads
from sarlite.data import divided, format, load, npyfile, scratch
from sarlite.errors import ConfigError, DataError

SBM = "sbm:nodes=60,degree=4,features=5,classes=3,seed=1"


@pytest.fixture
def stored(tmp_path):
    format.write(tmp_path / "d", load(SBM))
    return tmp_path / "d"


def run(code, *arguments):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], capture_output=True, text=True,
                          timeout=60, check=False)


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_the_folder_of_a_killed_run_goes_with_the_next(tmp_path, kill):
    code = """
        import os, sys
        from sarlite.comm import threads
        from sarlite.data import divided
        def work(comm):
            with divided(comm, sys.argv[1], scratch=sys.argv[2]):
                comm.barrier()
                os.kill(os.getpid(), int(sys.argv[3]))
        threads.run(2, work)
    """
    done = run(code, SBM, tmp_path, int(kill))
    assert done.returncode == -kill, done.stderr
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".sarlite-") and (left / "data").is_dir()

    def work(comm):
        with divided(comm, SBM, scratch=tmp_path):
            comm.barrier()
            return os.listdir(tmp_path)

    (folder,), _ = threads.run(2, work)
    assert folder.startswith(".sarlite-") and folder != left.name and not os.listdir(tmp_path)


def test_what_a_killed_writer_left_goes_with_the_next(stored, tmp_path):
    code = """
        import os, sys
        from sarlite.data import format, load
        with format.GraphWriter(sys.argv[1], overwrite=True) as out:
            os.kill(os.getpid(), 9)
    """
    assert run(code, stored).returncode == -9
    os.rename(tmp_path / "d", tmp_path / ".d.old-1")  # a process was killed between the two renames, and this is the only copy
    assert len(os.listdir(tmp_path)) == 2
    with format.GraphWriter(stored):
        assert (tmp_path / ".d.old-1").is_dir() and len(os.listdir(tmp_path)) == 2
    os.rename(tmp_path / ".d.old-1", tmp_path / ".d.old-76543210")
    with pytest.raises(DataError, match=r"replaced the data set, which is in .*/\.d\.old-76543210: rename that folder to .*/d$"):
        format.open(stored)
    os.rename(tmp_path / ".d.old-76543210", stored)
    shutil.copytree(stored, tmp_path / ".d.old-0123abcd")
    mine = [".d.old-2024", ".d.old-9abcdef0", ".d.tmp-mine", ".data.0123456789ab.tmp"]  # folders of the user
    for name in mine:
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine")
    mode = stat.S_IMODE(stored.stat().st_mode)
    assert not main(["partition", str(stored), "--parts", "2"])
    assert sorted(os.listdir(tmp_path)) == sorted(["d", *mine]) and stat.S_IMODE(stored.stat().st_mode) == mode


@pytest.mark.parametrize("place, content", [("notes.txt", "mine"), ("nodes/node/more.csv", "1"), ("meta.json", '{"schema": "other"}'),
                                            ("meta.json", "[]")])
def test_a_folder_with_other_files_is_not_replaced(place, content, stored, capsys):
    (stored / place).write_text(content)
    assert main(["convert", "sbm:nodes=50", str(stored), "--overwrite"]) == 2
    assert "is not replaced" in capsys.readouterr().err and (stored / place).read_text() == content


def test_ctrl_c_leaves_the_old_data_set(stored, tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    before = {path: path.read_bytes() for path in stored.rglob("*") if path.is_file()}
    monkeypatch.setattr("sarlite.cli.data_command.divide", interrupted)
    assert main(["partition", str(stored), "--parts", "2"]) == 130
    assert capsys.readouterr().err.count("\n") == 1 and os.listdir(tmp_path) == ["d"]
    assert {path: path.read_bytes() for path in stored.rglob("*") if path.is_file()} == before


def test_two_partitions_at_once_lose_nothing(stored, tmp_path, capsys):
    before = format.open(stored).division
    with format.GraphWriter(stored, overwrite=True):  # a lock of another process would have the same effect
        for command in (["partition", str(stored), "--parts", "2"], ["partition", str(stored), "--parts", "2", "--output", f"{tmp_path}/e"],
                        ["convert", str(stored), f"{tmp_path}/e"], ["convert", SBM, str(stored), "--overwrite"]):
            assert main(command) == 2
            assert "d: another process " in capsys.readouterr().err
        with pytest.raises(ConfigError, match="d: another process writes this data set"):
            threads.run(2, lambda comm: divided(comm, stored).__enter__())
    assert format.open(stored).division == before and os.listdir(tmp_path) == ["d"]
    with scratch.locked(stored / "meta.json", exclusive=False):
        assert main(["partition", str(stored), "--parts", "2"]) == 2
        assert "d: another process reads or writes this data set" in capsys.readouterr().err
        assert not main(["partition", str(stored), "--parts", "2", "--output", f"{tmp_path}/e"])
    assert not main(["partition", str(stored), "--parts", "3"]) and format.open(stored).n_parts == 3
    assert not main(["convert", f"{stored},normalize", str(stored), "--overwrite"])


def test_two_converts_into_one_new_directory(stored, tmp_path):
    dataset = load(SBM)
    with pytest.raises(ConfigError, match="new: exists already"), format.GraphWriter(tmp_path / "new") as out:
        format.write(tmp_path / "new", dataset)
        from sarlite.data.divide import copy

        copy(dataset, out)
    assert dataset.equals(format.open(tmp_path / "new", verify=True)) and sorted(os.listdir(tmp_path)) == ["d", "new"]


def test_a_data_set_replaced_between_opening_and_locking(stored, tmp_path, monkeypatch):
    real = scratch.fcntl.flock

    def flock(handle, how):
        real(handle, how)
        monkeypatch.setattr(scratch.fcntl, "flock", real)
        format.write(tmp_path / "other", load(SBM))
        os.rename(stored, tmp_path / "away")
        os.rename(tmp_path / "other", stored)

    monkeypatch.setattr(scratch.fcntl, "flock", flock)
    with pytest.raises(ConfigError, match="has just replaced this data set"), scratch.locked(stored / "meta.json", exclusive=True):
        pass


def test_a_file_system_without_locks(stored, monkeypatch):
    def flock(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(scratch.fcntl, "flock", flock)
    assert not main(["partition", str(stored), "--parts", "2"])


def test_a_place_for_scratch_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file: no scratch can be made here"):
        threads.run(2, lambda comm: divided(comm, SBM, scratch=tmp_path / "file").__enter__())


def test_ranks_that_see_other_data_are_refused(stored, tmp_path, monkeypatch):
    """Two hosts may have different directories of one name."""
    assert not main(["partition", str(stored), "--parts", "2"])
    dataset = load(stored)
    dataset.features = np.array(dataset.features) + 1
    format.write(tmp_path / "e", dataset)
    refused = []

    def work(comm):
        place = stored if comm.rank == 0 else tmp_path / "e"
        comm.bcast = lambda value, root=0, real=comm.bcast: real(value, root) and str(place)
        with pytest.raises(DataError, match="meta.json .*not the same .*: rank 1 and rank 0"):
            divided(comm, stored).__enter__()
        refused.append(comm.rank)

    threads.run(2, work)
    assert sorted(refused) == [0, 1]


def verified(n_ranks, monkeypatch, *places):
    """Return the files that each rank compares; rank r sees places[r]."""
    seen = {}

    def verify(path, record, field):
        seen.setdefault(rank_of[threading.get_ident()], []).append(path)
        VERIFY(path, record, field)

    rank_of = {}
    monkeypatch.setattr(npyfile, "verify", verify)

    def work(comm):
        rank_of[threading.get_ident()] = comm.rank
        if places:
            comm.bcast = lambda value, root=0, real=comm.bcast: real(value, root) and str(places[comm.rank])
        with divided(comm, places[0] if places else DIRECTORY[0], verify=True) as dataset:
            return dataset.n_nodes

    assert threads.run(n_ranks, work) == [60] * n_ranks
    return seen


VERIFY = npyfile.verify
DIRECTORY = [None]


def test_ranks_share_the_files_out_whose_hashes_they_compare(stored, tmp_path, monkeypatch):
    assert not main(["partition", str(stored), "--parts", "2"])
    DIRECTORY[0] = stored
    every = sorted(stored.rglob("*.npy"))
    for n_ranks in (1, 2):
        files_of_rank = verified(n_ranks, monkeypatch)
        assert sorted(sum(files_of_rank.values(), [])) == every and max(files_of_rank) == n_ranks - 1
    shutil.copytree(stored, tmp_path / "e")  # another host's copy: each compares its own
    files_of_rank = verified(2, monkeypatch, stored, tmp_path / "e")
    assert sorted(files_of_rank[0]) == every and len(files_of_rank[1]) == len(every)


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_a_changed_file_is_refused_on_every_rank(stored, n_ranks):
    for path in sorted(stored.rglob("*.npy")):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        refused = []

        def work(comm, path=path, refused=refused):
            with pytest.raises(DataError, match=f"{path.name}: .*"):
                divided(comm, stored, verify=True).__enter__()
            refused.append(comm.rank)

        threads.run(n_ranks, work)
        assert sorted(refused) == list(range(n_ranks))
        path.write_bytes(content)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("exclusive", [True, False])
def test_a_pipe_in_place_of_the_file_is_not_waited_for(tmp_path, exclusive):
    os.mkfifo(tmp_path / "meta.json")
    with scratch.locked(tmp_path / "meta.json", exclusive=exclusive):
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no")])
def test_an_old_data_set_is_restored_if_its_replacement_is_interrupted(error, stored, tmp_path, monkeypatch):
    before, rename = (stored / "meta.json").read_bytes(), os.rename

    def interrupted(source, target):
        if os.fspath(target) == os.fspath(stored) and ".old-" not in os.fspath(source):
            raise error
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises((KeyboardInterrupt, DataError)):
        format.write(stored, load(SBM), overwrite=True)
    assert (stored / "meta.json").read_bytes() == before and os.listdir(tmp_path) == ["d"]
