"""Inject random faults into real training jobs, at a random time from the start of the process to its end.

    python -m tests.failure.faults --faults 200 --seed 0

Each job must end in time and tell the cause. It must leave a checkpoint that can be read, no stray file and no process. Where the machine
is busy, time limits are longer by its load a core. Three kinds cannot tell a cause and need not: one process that is killed, a launcher,
and a rank that leaves by os._exit, which its status tells. Ranks that leave before the command's first line, or by os._exit before they
have connected, are detected as stalls. A file that a killed process leaves must be gone after the next run in the same folder.
"""

import argparse
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
LAUNCHER_VARIABLES = ("PMI_", "PMIX_", "OMPI_", "MPI_LOCAL", "MV2_", "SLURM_", "HYDRA_", "HYDI_")
SECONDS, STALL_SECONDS = 10.0, 4.0
OPTIONS = ("--data sbm:nodes=300,classes=3,features=8,degree=6 --model gat --hidden 4 --heads 2 --epochs 10 --checkpoint-every 1 "
           "--prefetch 1 --threads 1 --progress none").split()
SETTINGS = [("mpi", 2), ("mpi", 3), ("threads", 2)]
TOLD = {  # pattern that stderr must match; an empty pattern matches anything
    "kill": r"signal 9|Killed|SIGNAL: 9", "term": r"SIGTERM|[Tt]erminated", "int": r"SIGINT|KeyboardInterrupt|[Ii]nterrupt",
    "hup": r"SIGHUP|Hangup|signal 1\b", "_exit0": r"os\._exit\(0\)|Timeout|Abort", "stop": r"no progress|does not answer|Timeout",
    "exception": r"Fault", "exit": r"SystemExit|another rank|Timeout",
    "_exit": r"EXIT CODE|Timeout", "abort": r"Fatal Python error: Aborted", "prefetch": r"Fault: the cause", "push": r"Fault: the cause",
    "launcher": r"", "proxy": r"mpiexec|proxy",
}  # fmt: skip
KINDS = list(TOLD)
WAITS = ("prefetch", "push")
"""Kinds that break a wait of a thread. A run has such waits whenever the fault is to come, so that the fault must strike."""
FILES = {"config.toml", "metrics.jsonl", "checkpoint.safetensors", "summary.json"}


class Case(NamedTuple):
    """One fault: its kind, its rank, and its time as a share of a run's time."""

    kind: str
    how: str
    n_ranks: int
    rank: int
    share: float


def case(seed, number):
    draw = random.Random(f"{seed} {number}")
    kind = KINDS[(number + seed) % len(KINDS)]
    how, n_ranks = draw.choice([s for s in SETTINGS if s[0] == "mpi"] if kind in ("launcher", "proxy") else SETTINGS)
    return Case(kind, how, n_ranks, draw.randrange(n_ranks), draw.uniform(0, 1.1))


def load():
    """Return the number of processes that want each core, at least 1."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def marked(mark):
    """Return the processes, without zombies, whose environment has `mark`."""
    pids = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and mark in (folder / "environ").read_bytes():
                pids.append(int(folder.name))  # a zombie has no environment
        except OSError:
            pass
    return pids


def as_usual():
    """Restore the default handling of signals that a background job and `nohup` ignore."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Run:
    """One job with a fault, from its start until none of its processes is left."""

    def __init__(self, folder, one, seconds):
        self.case, self.folder, self.run_dir, self.temporary = one, folder, folder / "run", folder / "tmp"
        self.temporary.mkdir()
        self.busy = load()
        self.stall, self.at = STALL_SECONDS * min(4.0, self.busy), one.share * seconds
        mark = f"FAULT_DIR={folder}".encode()
        start = time.monotonic()
        with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
            process = subprocess.Popen(self._command(), env=self._environ(), stdout=out, stderr=err, cwd=folder, start_new_session=True,
                                       preexec_fn=as_usual)  # fmt: skip
            self.limit = max(SECONDS * self.busy, 60.0) + self.stall + 5 * seconds
            self.status = self._wait(process, start, mark)
        self.seconds = time.monotonic() - start
        moment = folder / "moment"
        self.phase, *self.shared = moment.read_text().split("\n") if moment.exists() else [None]
        self.armed = (folder / "armed").exists()
        self.after = time.time() - moment.stat().st_mtime if self.phase else None
        self.left = marked(mark)
        for pid in self.left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait()
        self.err = (folder / "err").read_text(errors="replace")
        self.left_behind = []
        self.told = (folder / "out").read_text(errors="replace") + self.err  # mpiexec reports on standard output

    def _command(self):
        launcher = [MPIEXEC, "-n", str(self.case.n_ranks)] if self.case.how == "mpi" else []
        ranks = ["--ranks", str(self.case.n_ranks)] if self.case.how == "threads" else []
        return [*launcher, sys.executable, str(Path(__file__).parent / "faulty.py"), *OPTIONS, *ranks,
                "--run-dir", str(self.run_dir), "--stall-timeout", str(self.stall)]

    def _environ(self):
        env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
        return env | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(self.temporary),
                      "FAULT": f"{self.case.kind}:{self.case.rank}:{self.at}", "FAULT_DIR": str(self.folder)}

    def _wait(self, process, start, mark):
        """Return the launcher's status once it and all its processes have ended, or None if they have not ended in time."""
        while time.monotonic() - start < self.limit:
            status = process.poll()
            if status is not None and not marked(mark):
                return status
            time.sleep(0.02)
        return None

    def is_stall(self):
        """Return True if nobody can tell of this fault, so that only a time-out can detect it."""
        one = self.case
        before = one.how == "mpi" and self.phase == "start"
        return one.kind == "stop" or (before and one.kind in ("_exit", "_exit0", "exit", "exception", "int"))

    def findings(self):
        if self.left:
            yield f"did not end; left {len(self.left)} processes"
            return
        if self.phase is None:
            if self.armed or self.case.kind in WAITS:
                yield "the fault never struck"
            if self.status != 0:
                yield f"without a fault the status is {self.status}"
        else:
            allowed = SECONDS * self.busy + (self.stall if self.is_stall() else 0)
            if self.after > allowed:
                yield f"ended {self.after:.1f} s after the fault, more than {allowed:.1f}"
            words = TOLD[self.case.kind] if self.phase != "start" else r"\w"  # Python reports the failure, or NumPy during its import
            if self.status != 0 and self._must_tell() and not re.search(words, self.told):
                yield "does not tell the cause"
            silent = ("kill", "abort", "prefetch", "push", *(["_exit0"] if self.case.how == "mpi" else []))
            if self.status == 0 and self.case.kind in silent and self.phase == "guarded":
                yield "status 0"
        yield from self.checkpoint()
        strays = self.strays()
        if strays and self.phase is not None:
            self.again()
            self.left_behind, strays = strays, self.strays()
        if strays:
            yield f"stray {' '.join(strays)}"

    def again(self):
        """Run again in the same folder, which must remove files that a killed process left."""
        resume = ["--resume", str(self.run_dir / "checkpoint.safetensors")] if (self.run_dir / "checkpoint.safetensors").exists() else []
        environ = self._environ() | {"FAULT": "none:0:0"}
        subprocess.run([*self._command(), *resume], env=environ, capture_output=True, timeout=300, cwd=self.folder)

    def _must_tell(self):
        on_threads = self.case.how == "threads"
        if not on_threads:
            return self.case.kind != "launcher" and (self.case.kind, self.status) != ("_exit", 3)
        if self.phase == "start" and self.case.kind in ("term", "hup", "abort"):
            return False
        return self.case.kind not in ("kill", "_exit", "_exit0", "exit")

    def checkpoint(self):
        from sarlite.errors import SarliteError
        from sarlite.train import checkpoint

        path = self.run_dir / "checkpoint.safetensors"
        if path.exists():
            try:
                checkpoint.load(path)
            except SarliteError as error:
                yield f"the checkpoint: {error}"

    def strays(self):
        run = set(os.listdir(self.run_dir)) - FILES if self.run_dir.exists() else set()
        shared = [path for path in self.shared if self.phase != "start" and os.path.exists(path)]  # MPI's own files, until MPI has started
        return sorted([*run, *os.listdir(self.temporary), *shared])


def campaign(faults, seed, first=0, say=print):
    """Run faults number `first` to `faults`; return [(Run, findings)]."""
    done, seconds = [], {}
    with tempfile.TemporaryDirectory(prefix="sarlite-faults-") as top:
        def run(name, one, expected):
            (folder := Path(top) / name).mkdir()
            result = Run(folder, one, expected)
            findings = list(result.findings())
            if not findings:
                shutil.rmtree(folder)
            return result, findings

        for number in range(first, faults):
            one = case(seed, number)
            setting = one.how, one.n_ranks
            if setting not in seconds:
                result, findings = run(f"sound-{one.how}{one.n_ranks}", one._replace(kind="none"), 20.0)
                assert not findings, (findings, result.err)
                seconds[setting] = result.seconds
            result, findings = run(str(number), one, seconds[setting])
            if result.phase is None:
                seconds[setting] = result.seconds  # the latest time reflects the present load
            done.append((result, findings))
            after = "no fault" if result.after is None else f"{result.phase}, {result.after:.1f} s"
            say(f"{number} {one.kind} in rank {one.rank} of {one.n_ranks} {one.how} at {result.at:.2f} s: {after}, status {result.status}"
                f"{' left until the next run: ' * bool(result.left_behind)}{' '.join(result.left_behind)}"
                f"{''.join(f'; FINDING: {text}' for text in findings)}", flush=True)  # fmt: skip
            if findings or (result.after or 0) > SECONDS:
                say(result.told[-20000:], flush=True)
    return done


def table(done):
    lines = [f"{'fault':<10} {'runs':>5} {'hit':>5} {'median s':>9} {'max s':>7} {'findings':>9}"]
    for kind in [*KINDS, "all"]:
        rows = [(run, findings) for run, findings in done if kind in ("all", run.case.kind)]
        after = [run.after for run, _ in rows if run.after is not None]
        times = f"{statistics.median(after):9.1f} {max(after):7.1f}" if after else f"{'-':>9} {'-':>7}"
        lines.append(f"{kind:<10} {len(rows):5} {len(after):5} {times} {sum(bool(findings) for _, findings in rows):9}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="go on from this one")
    options = parser.parse_args()
    done = campaign(options.faults, options.seed, options.first)
    print(table(done))
    return int(any(findings for _, findings in done))


if __name__ == "__main__":
    sys.exit(main())
