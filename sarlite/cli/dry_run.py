"""`--dry-run`: measurements of two training steps and one evaluation of a run."""

import json
import math
import time
from collections import Counter
from collections.abc import Callable

from sarlite.cli.limit import MemoryLimit
from sarlite.cli.run_report import duration
from sarlite.cli.settings import Settings
from sarlite.comm import Communicator
from sarlite.command import aligned, readable, show
from sarlite.train.load import Shard
from sarlite.train.loop import Trainer
from sarlite.types import JsonObject


def dry_run(comm: Communicator, run: Settings, trainer: Trainer, part: Shard, limit: MemoryLimit) -> JsonObject:
    """Measure the time, sent bytes and memory of two training steps and one evaluation of `trainer` on the data `part`; print and return
    the measurements. The memory `limit` is checked after the first step. Collective.

    The first step also allocates memory and fetches rows that are fetched once. The second step is like all later
    steps.

    Parameters
    ----------
    comm : Communicator
    run : Settings
    trainer : Trainer
        Trainer of the run, which takes the two steps.
    part : Shard
    limit : MemoryLimit
        Limit that is checked after the first step.

    Returns
    -------
    dict
        Measurements, which `--json` prints: sent bytes of all ranks by phase, seconds of the slowest rank, and
        "peak_bytes", a list by rank.

    Raises
    ------
    ConfigError
        On every rank: the first step took more memory than the limit.
    """
    profile = trainer.graph.profile
    sent, seconds = {"setup": _sums(comm, profile.sent_bytes)}, {}

    def measure(name: str, function: Callable[[], object]) -> None:
        before, begin = profile.sent_bytes.copy(), time.perf_counter()
        function()
        seconds[name] = max(comm.allgather(time.perf_counter() - begin))
        sent[name] = _sums(comm, profile.sent_bytes - before)

    def evaluate() -> None:
        with profile.phase("evaluation"):
            trainer.evaluate()

    measure("first step", trainer.step)
    limit.check_once(comm)
    measure("evaluation", evaluate)
    measure("step", trainer.step)
    n_steps, training = len(trainer.batches), run.training
    n_evaluations = len({*range(training.eval_every, training.epochs + 1, training.eval_every), training.epochs})
    measured = {
        "ranks": comm.size, "mode": str(run.graph.mode), "prefetch": run.graph.prefetch, "steps_per_epoch": n_steps,
        "sent_bytes": sent, "peak_bytes": comm.allgather(part.memory.peak()),
        "live_remote_buffers": math.ceil(max(comm.allgather(profile.peak_remote_buffers))), "seconds": seconds,
        "epoch_seconds": n_steps * seconds["step"],
        "run_seconds": seconds["first step"] + (training.epochs * n_steps - 1) * seconds["step"]
                       + n_evaluations * seconds["evaluation"],
    }  # fmt: skip
    if comm.rank == 0:
        show(_table(run, part, measured))
        if run.output.json:
            show(json.dumps(measured))
    return measured


def _sums(comm: Communicator, counter: Counter[str]) -> dict[str, int]:
    """Return {phase: bytes of all ranks}, summed over the ranks' `counter`, a count of bytes by phase; phases with 0 bytes are left
    out. Collective.
    """
    total = sum(comm.allgather(Counter(counter)), Counter())
    return {phase: n_bytes for phase, n_bytes in sorted(total.items()) if n_bytes}


def _table(run, part, measured):
    summary = part.summary
    head = (f"{run.model.spec} on {summary['data'].rstrip(':')}: {summary['nodes']:,} nodes, {summary['edges']:,} "
            f"edges; ranks {measured['ranks']}, mode {measured['mode']}, prefetch {measured['prefetch']}; nothing is written")
    lines = [["", "time", "sent by all ranks"]]
    for name, phases in measured["sent_bytes"].items():
        sent = ", ".join(f"{phase} {readable(n_bytes)}" for phase, n_bytes in phases.items()) or "nothing"
        lines.append([name, duration(measured["seconds"][name]) if name in measured["seconds"] else "", sent])
    lines += [["epoch", duration(measured["epoch_seconds"]), f"{measured['steps_per_epoch']:,} steps"],
              ["run", duration(measured["run_seconds"]), f"{run.training.epochs:,} epochs, with evaluations"],
              ["peak memory", "", ", ".join(map(readable, measured["peak_bytes"])) + " by rank, without Python"]]
    return "\n".join([head, aligned(lines)])
