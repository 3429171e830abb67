"""Test the closing table and the progress lines of a run."""

import pytest

from sarlite.cli import run_report as report
from sarlite.schedule.schedule import Options

MIB = 2**20


@pytest.mark.parametrize("seconds, text", [(0.25, "0.25 s"), (9.44, "9.4 s"), (9.5, "10 s"), (59, "59 s"), (185, "3 min 05 s"),
                                           (7800, "2 h 10 min")])  # fmt: skip
def test_durations_have_two_digits_and_a_unit(seconds, text):
    assert report.duration(seconds) == text


def test_memory_of_few_ranks_and_of_many():
    assert report._memory([MIB], False) == "1.0 MiB"
    assert report._memory([MIB, 3 * MIB], False) == "1.0 MiB, 3.0 MiB (by rank)"
    assert report._memory([MIB, 3 * MIB], True) == "3.0 MiB (all ranks in one process)"
    assert report._memory([n * MIB for n in range(1, 31)], False) == "1.0 MiB to 30.0 MiB, median 15.5 MiB"


@pytest.mark.parametrize("live, size, mode, text", [
    (0, 1, "sar", "none: one part"), (1, 4, "sar", "of at most 1 peer at once; mode sar promises at most 2"),
    (2, 4, "sar", "of at most 2 peers at once; mode sar promises at most 2"),
    (3, 4, "oneshot", "of at most 3 peers at once; mode oneshot promises no bound"),
])  # fmt: skip
def test_the_line_on_remote_rows_says_what_the_mode_promises(live, size, mode, text):
    assert report._remote(live, Options(mode, 1), size) == text


def test_remote_rows_of_several_peers_at_once():
    assert report._remote(4, Options("sar", 1, peers_at_once=2), 8) == "of at most 4 peers at once; mode sar promises at most 4"


def test_lines_of_progress_tell_what_is_left(capsys, monkeypatch):
    times = iter([100.0, *([110.0] * 9)])
    monkeypatch.setattr(report.time, "monotonic", lambda: next(times))
    progress = report.EpochProgress("lines", 2, 12)
    progress.update({"epoch": 4, "loss": 1.0, "train_accuracy": 0.5, "val_accuracy": None})
    assert capsys.readouterr().err == "epoch 4/12: loss 1.0000, train accuracy 0.5000, 40 s left\n"
