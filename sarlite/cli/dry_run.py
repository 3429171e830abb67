"""`--dry-run`: the run's own trainer takes two steps and one evaluation, and their measurements are printed."""

import json
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from sarlite.cli.limit import MemoryLimit
from sarlite.cli.run_report import duration
from sarlite.cli.settings import Settings
from sarlite.comm import Communicator
from sarlite.command import aligned, readable, show
from sarlite.train.load import Shard


def dry_run(comm: Communicator, run: Settings, trainer: Any, part: Shard, limit: MemoryLimit) -> dict[str, Any]:
    """Measure a step, an evaluation and another step of a run, print and return the result. Collective.

    The first step takes fresh memory and fetches rows that stay, and an evaluation may keep sums of constant features.
    The second step has all of these, so it stands for the steps that follow.

    Parameters
    ----------
    comm : Communicator
    run : Settings
    trainer : Trainer
        The run's own.
    part : Shard
    limit : MemoryLimit
        Checked after the first step.

    Returns
    -------
    dict
        The values that `--json` prints: bytes are sums over ranks by phase, seconds those of the slowest rank, and
        "peak_bytes" a list by rank.

    Raises
    ------
    ConfigError
        On every rank: the first step took more memory than the limit.
    """
    profile = trainer.graph.profile
    sent, seconds = {"setup": _sums(comm, profile.sent_bytes)}, {}

    def measure(name: str, function: Callable[[], Any]) -> None:
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
    found = {
        "ranks": comm.size, "mode": str(run.graph.mode), "prefetch": run.graph.prefetch, "steps_per_epoch": n_steps,
        "sent_bytes": sent, "peak_bytes": comm.allgather(part.memory.peak()),
        "live_remote_buffers": math.ceil(max(comm.allgather(profile.peak_remote_buffers))), "seconds": seconds,
        "epoch_seconds": n_steps * seconds["step"],
        "run_seconds": seconds["first step"] + (training.epochs * n_steps - 1) * seconds["step"]
                       + n_evaluations * seconds["evaluation"],
    }  # fmt: skip
    if comm.rank == 0:
        show(_table(run, part, found))
        if run.output.json:
            show(json.dumps(found))
    return found


def _sums(comm, counter):
    """Return the bytes of all ranks by phase, without phases that sent nothing."""
    total = sum(comm.allgather(Counter(counter)), Counter())
    return {phase: n_bytes for phase, n_bytes in sorted(total.items()) if n_bytes}


def _table(run, part, found):
    summary = part.summary
    head = (f"{run.model.spec} on {summary['data'].rstrip(':')}: {summary['nodes']:,} nodes, {summary['edges']:,} "
            f"edges; ranks {found['ranks']}, mode {found['mode']}, prefetch {found['prefetch']}; nothing is written")
    lines = [["", "time", "sent by all ranks"]]
    for name, phases in found["sent_bytes"].items():
        told = ", ".join(f"{phase} {readable(n_bytes)}" for phase, n_bytes in phases.items()) or "nothing"
        lines.append([name, duration(found["seconds"][name]) if name in found["seconds"] else "", told])
    lines += [["epoch", duration(found["epoch_seconds"]), f"{found['steps_per_epoch']:,} steps"],
              ["run", duration(found["run_seconds"]), f"{run.training.epochs:,} epochs, with evaluations"],
              ["peak memory", "", ", ".join(map(readable, found["peak_bytes"])) + " by rank, without Python"]]
    return "\n".join([head, aligned(lines)])
