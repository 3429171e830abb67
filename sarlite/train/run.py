"""One whole run of the training command on one rank."""

import argparse
import re
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from sarlite import nn, optim
from sarlite.comm import together
from sarlite.comm.interrupt import Interrupts
from sarlite.comm.launch import default_prefetch, default_threads
from sarlite.errors import CheckpointError, ConfigError
from sarlite.profile import trim
from sarlite.sar.graph.hetero import NodeType
from sarlite.train import (
    caches,
    checkpoint,
    costs,
    edge_values,
    minibatch,
    planning,
    propagated,
    relational,
    report,
    resume,
    smoothing,
    trace,
)
from sarlite.train.config import to_toml
from sarlite.train.flow import FlowTrainer
from sarlite.train.folder import Folder
from sarlite.train.identity import identity
from sarlite.train.label_inputs import LabelInputs
from sarlite.train.load import load_part
from sarlite.train.loop import Best, Trainer, fit, set_threads
from sarlite.train.minibatch import BatchTrainer
from sarlite.train.model import errors_of, make_model, model_class
from sarlite.train.saving import Saving
from sarlite.train.stopping import Stopping
from sarlite.train.tasks import Task


def train(comm, config, tick=lambda: None, interrupts=None):
    """Load, train, report. Collective.

    Nothing changes in the run's folder before the first epoch has ended well.

    Parameters
    ----------
    comm : Communicator
    config : Namespace of `config.OPTIONS`
    tick : callable
        Called whenever this rank makes progress.
    interrupts : Interrupts, optional
        While epochs run, the first signal that comes is postponed to the end of the epoch.

    Returns
    -------
    dict
        What `--json` prints.

    Raises
    ------
    SarliteError
        On every rank together.
    SystemExit
        On every rank, with 128 + its number, where a signal came; rank 0 has written a checkpoint and told how to go on.
    """
    threads = config.threads or default_threads(comm)
    set_threads(threads)
    cls, schedule, *_ = together(comm, lambda: (model_class(config.model), optim.schedule(config.lr_schedule, config.epochs),
                                                minibatch.remote(vars(config))))
    together(comm, lambda: (edge_values.wanted(config, cls), minibatch.check(config, cls)))
    resumed = checkpoint.read(comm, config.resume) if config.resume else None
    if resumed:
        together(comm, lambda: resume.check_options(config, resumed[1]))
    folder = Folder(comm, config.run_dir, config.resume, Path(config.model).stem)
    try:
        if config.trace:
            trace.check_path(comm, config.trace)
        tick()
        return _train(comm, config, cls, schedule, resumed, folder, threads, tick, interrupts or Interrupts())
    finally:
        folder.close()


def _train(comm, config, cls, schedule, resumed, folder, threads, tick, interrupts):
    hetero = relational.chosen(comm, config, cls)
    about = {"seed": config.seed, "model": config.model, "options": resume.stored(config)}
    toml = to_toml(config)
    if config.prefetch is None:
        config = argparse.Namespace(**{**vars(config), "prefetch": default_prefetch(comm, threads)})
    loops = getattr(cls, "self_loops", False) if config.self_loops is None else config.self_loops
    was_auto = config.mode == "auto"
    part, config = _load(comm, config, cls, folder, loops, tick, hetero)
    if config.dry_run:
        return planning.dry_run(comm, config, *costs.of_run(comm, config, cls, part, _make_trainer), part)
    if not hetero:
        about["options"] |= {option: True for name, option in edge_values.ARRAYS.items() if getattr(part.graph, name) is not None}
    about |= {"data": (relational.identity if hetero else identity)(part.graph, part.rows, part.n_classes), "task": part.task}
    if resumed:
        together(comm, lambda: resume.check_data(config, resumed[1], about["data"]))
    there = part.memory.now()  # without what reading the data and dividing the edges took
    part.graph.profile.on_progress = tick
    trainer = _make_trainer(comm, config, cls, schedule, part, about["data"])
    if config.mfg and comm.rank == 0 and any(isinstance(module, nn.BatchNorm) for _, module in trainer.model.named_modules()):
        print("warning: --mfg: batch norm takes its statistics over the nodes that are computed, so results are not the full graph's",
              file=sys.stderr, flush=True)
    if not was_auto and planning.counts(config):
        n_widths = sum(sum(p.shape if p.ids is None else p.shape[1:]) for _, p in trainer.model.named_parameters())
        planning.check(comm, config, lambda: costs.of_run(comm, config, cls, part, _make_trainer, there, trainer), part, n_widths)
    part = part._replace(rows=None)  # the trainer has what it needs of them; with labels as inputs, or powers, other features
    trim()  # of them, and of messages that brought halo rows' features
    stopping = Stopping(config.patience, optim.plateau_of(schedule))
    start, best = _restore(comm, config, trainer, resumed, stopping) if resumed else (0, Best(trainer.task))
    saving = Saving(comm, config, folder, trainer, best, about, toml, start, interrupts, stopping)
    with errors_of(config.model):
        return _run(comm, config, trainer, part, saving, tick)


def _load(comm, config, cls, folder, loops, tick, hetero):
    """Return this rank's part, and the options with the mode that it has. Collective."""
    together(comm, lambda: planning.refuse(config))
    values, chosen = edge_values.wanted(config, cls), {"mode": "sar"}
    if config.mode != "auto" and not config.dry_run:
        if hetero:
            return relational.load_part(config, comm, folder.path, tick), config
        return load_part(config, comm, folder.path, loops, tick, edge_values=values), config

    def choose(part):
        if config.mode == "auto" and not config.dry_run:
            setting = planning.choose(comm, config, *costs.of_run(comm, config, cls, part, _make_trainer), part)
            chosen.update(setting.options, mode=setting.mode)
        return chosen

    if hetero:
        part = relational.load_part(config, comm, folder.path, tick, choose=choose)
    else:
        part = load_part(config, comm, folder.path, loops, tick, edge_values=values, choose=choose)
    return part, argparse.Namespace(**{**vars(config), **chosen})


def _make_trainer(comm, config, cls, schedule, part, data):
    rng, task = nn.Random(config.seed), together(comm, lambda: _task(config, part))
    hetero = isinstance(part.graph, NodeType)
    n_in = relational.widths(part.rows) if hetero else part.rows.features.shape[1] + (part.n_classes if config.label_inputs else 0)
    model = together(comm, lambda: make_model(cls, config, n_in, part.n_classes, rng, part.graph))
    first = next(iter(dict(model.named_parameters()))).split(".")[:2]
    place = slice(1, 2) if first[-1].isdigit() else slice(2)  # convs.0 and activations.0 are one layer

    def decay(name):
        return config.weight_decay if config.weight_decay_on == "all" or name.split(".")[place] == first[place] else 0.0

    lr = config.lr * minibatch.LR_SCALES[config.lr_scale or "none"](comm.size)

    def optimizer(flat):
        if config.optimizer == "sgd":
            return optim.SGD(flat, lr, momentum=0.9, weight_decay=decay)
        return optim.Adam(flat, lr, weight_decay=decay, decoupled=config.optimizer == "adamw")

    rows, features = part.rows, propagated.inputs(comm, config, model, part, data)
    kind, loaders = FlowTrainer if config.mfg else Trainer, {}
    if config.batch_size:
        kind, loaders = BatchTrainer, minibatch.loaders(config, part, features, hasattr(model, "powers"))
        features = loaders["loader"].x  # where they were copied, that copy alone stays
    if config.label_inputs:
        loaders["label_inputs"] = LabelInputs(config.label_inputs, part.n_classes)
    return kind(part.graph, model, features, rows.labels, rows.train, rows.val, rows.test,
                optimizer=optimizer, rng=rng, schedule=schedule, task=task, clip_norm=config.clip_norm, **loaders)


def _task(config, part):
    task = Task(part.task, config.loss, config.metric)
    task.check_width(part.n_classes)
    for flag, value in (("--label-inputs", config.label_inputs), ("--correct-and-smooth", config.correct_and_smooth)):
        if value and part.task != "classify":
            raise ConfigError(f"{flag}: is of classes, but the task is {part.task}")
    return task


def _restore(comm, config, trainer, resumed, stopping):
    """Put a checkpoint's state into the trainer and `stopping`; return the epoch to go on from and the best so far."""
    (tensors, meta), best = resumed, Best(trainer.task)
    try:
        best.state = checkpoint.restore_state(trainer, tensors, meta)
        tensors.clear()  # which closes the file
        stopping.load_state(meta)
    except CheckpointError as error:
        text = re.sub(r"^(rank \d+: )+", "", str(error))  # the same on every rank: it is told once
        raise CheckpointError(f"checkpoint {config.resume}: {text}") from None
    if config.remote == "hec" and comm.size > 1:
        told, step = meta.get("caches"), meta["epoch"] * len(trainer.loader)
        others = told and minibatch.remote(vars(config)) != minibatch.remote(meta["options"])
        reason = "their flags were others" if others else caches.restore(comm, Path(config.resume).parent, trainer, told, step)
        if reason and comm.rank == 0:
            print(f"warning: the caches of embeddings start empty: {reason}", file=sys.stderr, flush=True)
    best.epoch, best.scores = meta["best"]["epoch"], {**best.scores, **meta["best"]["scores"]}
    if best.scores["val_loss"] is None:  # there was none yet
        best.scores["val_loss"] = float("inf")
    return meta["epoch"], best


def _run(comm, config, trainer, part, saving, tick):
    root, seconds = comm.rank == 0, []
    start, begin = saving.start, time.perf_counter()

    def on_step(done, loss):
        tick()
        if root:
            progress.step(done, loss)

    def on_epoch(record):
        tick()
        seconds.append(record["seconds"])
        stops = saving.on_epoch(record)
        if root:
            progress.update(record)
        if record["epoch"] - start == config.trace_epochs:
            part.graph.profile.trace = None
        return stops

    with saving.interrupts.postponed():
        if start < config.epochs:
            saving.try_disk()
        steps = len(trainer.loader) if trainer.loader else 1
        progress = report.Progress(config.progress, start, config.epochs, steps, trainer.task.key) if root else None
        try:
            with trace.recording(comm, part.graph.profile) if config.trace else nullcontext() as recorded:
                fit(trainer, config.epochs, start=start, eval_every=config.eval_every, best=saving.best, stopping=saving.stopping,
                    on_epoch=on_epoch, on_step=on_step)
        finally:
            if root:
                progress.close()
        saving.save()
    times = {**part.seconds, "epochs": time.perf_counter() - begin, "n": len(seconds), "early": saving.epoch < config.epochs}
    if config.trace:
        trace.write(comm, config.trace, recorded)
    if saving.signum:
        saving.leave()
    smoothed = smoothing.after_training(trainer, saving.best, config, saving.folder) if config.correct_and_smooth else None
    counted = report.collect(comm, part.graph, part.memory, seconds) | trainer.counted()
    counted |= relational.counted(part.graph.graph) if isinstance(part.graph, NodeType) else {}
    counted |= {"left_out": trainer.left_out} if trainer.left_out else {}
    counted |= {"correct_and_smooth": smoothed} if smoothed else {}
    if root:
        print(report.table(config, comm.size, part.summary, counted, saving.best, times, saving.folder.path), flush=True)
        if config.json:
            print(report.json_line(config, comm.size, counted, saving.best), flush=True)
    return counted
