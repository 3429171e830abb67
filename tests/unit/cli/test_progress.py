"""Test progress lines: none for short steps, and the completed share and remaining time of long steps."""

import importlib
import io
import re
import time
import warnings
from types import SimpleNamespace

import pytest

from sarlite import progress
from sarlite.cli.data_command import main
from sarlite.errors import ConfigError
from sarlite.progress import SILENT, Progress, Step, duration


class Terminal(io.StringIO):
    def isatty(self):
        return True


SOON = {"line_seconds": 0.01, "bar_seconds": 0.01}


def wait_for(stream, word):
    end = time.monotonic() + 60
    while not re.search(word, stream.getvalue()):
        assert time.monotonic() < end, stream.getvalue()
        time.sleep(0.005)


def test_durations_are_written_in_seconds_minutes_or_hours():
    assert [duration(seconds) for seconds in (0.2, 59.4, 60, 185, 7800)] == ["0 s", "59 s", "1 min 00 s", "3 min 05 s", "2 h 10 min"]


def test_a_step_tells_how_far_it_is(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    step = Step("write d", 1000)
    now[0] += 12
    assert step.line() == "write d: 12 s"
    step.add(400)
    assert step.line() == "write d: 40 %, 12 s, 18 s left"
    step.add(600)
    assert step.line() == "write d: 100 %, 12 s, 0 s left"
    assert Step("METIS").line() == "METIS: 0 s"


def test_the_system_says_how_far_a_file_is_read(tmp_path):
    (tmp_path / "edges.txt").write_bytes(bytes(1000))
    for reads, text in ((tmp_path / "edges.txt", "read it"), (tmp_path, "read it, edges.txt")):
        step = Step("read it", reads=str(reads))
        assert step.line() == "read it: 0 s"
        with open(tmp_path / "edges.txt", "rb", buffering=0) as file:
            file.read(250)
            assert re.fullmatch(re.escape(text) + r": 25 %, \d s, \d s left", step.line())


def test_lines_of_long_steps_alone():
    stream = io.StringIO()
    with Progress("auto", stream, **SOON).step("long", 10) as step:
        step.add(5)
        wait_for(stream, r"long: 50 %, 0 s, 0 s left\n")
    lines = stream.getvalue()
    progress = Progress("auto", stream, line_seconds=60)
    with progress.step("short"):
        pass
    with pytest.raises(ZeroDivisionError), progress.step("fails"):
        raise ZeroDivisionError
    assert stream.getvalue() == lines
    with Progress("none", stream).step("silent"), SILENT.step("silent"):
        pass


def test_a_line_that_changes_on_a_terminal():
    pytest.importorskip("tqdm")
    for kind, stream in (("auto", Terminal()), ("bar", io.StringIO())):
        with Progress(kind, stream, **SOON).step("long", 4) as step:
            step.add(1)
            wait_for(stream, "long: 25 %")
        assert "\n" not in stream.getvalue() and stream.getvalue().endswith(" \r")  # the line is gone


def test_a_bar_without_tqdm(monkeypatch):
    monkeypatch.setitem(progress.sys.modules, "tqdm", None)
    for name in ("tqdm.auto", "tqdm.std"):
        monkeypatch.setitem(progress.sys.modules, name, None)
    with pytest.raises(ConfigError, match="--progress bar needs the package tqdm"):
        Progress("bar")
    assert not Progress("auto", Terminal())._bar


def test_a_reader_that_left_ends_no_work():
    stream = io.StringIO()
    stream.close()
    with Progress("lines", stream, **SOON).step("long"):
        time.sleep(0.05)


def test_convert_and_partition_tell(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)  # a line as often as possible
    assert not main(["convert", "sbm:nodes=3000,features=8", f"{tmp_path}/d", "--progress", "lines"])
    shown = capsys.readouterr().err
    assert re.search(r"^read sbm:nodes=3000,features=8: \d+ s$", shown, re.M) and re.search(r"^write .*/d: \d+ %, ", shown, re.M)
    assert not main(["partition", f"{tmp_path}/d", "--parts", "2", "--order", "metis", "--progress", "lines"])
    shown = capsys.readouterr().err
    for word in ("check .*/d", "divide into 2 parts by metis", "order metis", "write .*/d"):
        assert re.search(f"^{word}.*: ", shown, re.M), word
    assert not main(["partition", f"{tmp_path}/d", "--parts", "3", "--progress", "none"])
    assert not capsys.readouterr().err


def test_a_notebook_has_a_bar(monkeypatch):
    """The bar consists of widgets if they are installed, and else of text, without a warning of tqdm."""
    tqdm, notebook = pytest.importorskip("tqdm"), SimpleNamespace(get_ipython=lambda: SimpleNamespace(config={"IPKernelApp": 1}))
    assert progress.bar_class("auto", io.StringIO()) is None
    for name, module in (("ipykernel", object()), ("IPython", notebook), ("ipywidgets", None)):
        monkeypatch.setitem(progress.sys.modules, name, module)
    for name in ("tqdm.auto", "tqdm.autonotebook", "tqdm.notebook"):
        monkeypatch.delitem(progress.sys.modules, name, raising=False)
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert progress.bar_class("auto", io.StringIO()) is tqdm.tqdm and progress.bar_class("lines", io.StringIO()) is None
    monkeypatch.setattr(progress, "find_spec", lambda name: object())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert progress.bar_class("auto", io.StringIO()) is importlib.import_module("tqdm.auto").tqdm
