"""One whole run of the training command on one rank."""

import argparse
import threading
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

from sarlite import nn, optim
from sarlite.comm.launch import default_prefetch, default_threads
from sarlite.errors import CheckpointError, ConfigError, raise_together
from sarlite.profile import trim
from sarlite.train import checkpoint, report, trace
from sarlite.train.config import to_toml
from sarlite.train.load import load_part
from sarlite.train.loop import Best, Trainer, fit, set_threads
from sarlite.train.model import errors_of, make_model, model_class


def train(comm, config, tick=lambda: None):
    """Load, train, report. Collective.

    Parameters
    ----------
    comm : Communicator
    config : Namespace of `config.OPTIONS`
    tick : callable
        Called whenever this rank makes progress.

    Returns
    -------
    dict
        What `--json` prints.
    """
    threads = config.threads or default_threads(comm)
    set_threads(threads)
    error = None
    try:
        cls = model_class(config.model)
        schedule = optim.schedule(config.lr_schedule, config.epochs)
    except ConfigError as found:
        error = found
    raise_together(comm, error)
    resumed = checkpoint.read(comm, config.resume) if config.resume else None
    run_dir = _make_run_dir(comm, config)
    if config.prefetch is None:
        config = argparse.Namespace(**{**vars(config), "prefetch": default_prefetch(comm, threads)})
    if config.trace:
        trace.check_path(comm, config.trace)
    tick()
    loops = getattr(cls, "self_loops", False) if config.self_loops is None else config.self_loops
    with _ticking(tick):
        part = load_part(config, comm, run_dir, loops)
    trim()  # of what reading the data and dividing the edges took
    part.graph.profile.on_progress = tick
    trainer = _make_trainer(comm, config, cls, schedule, part)
    start, best = _resume(comm, config, trainer, resumed) if resumed else (0, Best())
    with errors_of(config.model):
        return _run(comm, config, trainer, part, start, best, run_dir, tick)


@contextmanager
def _ticking(tick):
    """Count as progress what has no steps to count: one rank may convert or partition for an hour while the others wait."""
    over = threading.Event()

    def work():
        while not over.wait(1.0):
            tick()

    thread = threading.Thread(target=work, name="sarlite-ticking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _make_run_dir(comm, config):
    """Agree on the run's folder; rank 0 makes it and writes the resolved options."""
    path, error = config.run_dir, None
    if path is None:
        path = Path(config.resume).parent if config.resume else Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(config.model).stem}"
    run_dir = Path(comm.bcast(str(path)))
    if comm.rank == 0:
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            if (run_dir / "metrics.jsonl").exists() and not config.resume:
                error = ConfigError(f"--run-dir {run_dir} already holds a run; name another, or --resume its checkpoint")
            else:
                (run_dir / "config.toml").write_text(to_toml(config))
        except OSError as found:
            error = ConfigError(f"--run-dir {run_dir}: {found.strerror}")
    raise_together(comm, error)
    return run_dir


def _make_trainer(comm, config, cls, schedule, part):
    rng, error = nn.Random(config.seed), None
    try:
        model = make_model(cls, config, part.rows.features.shape[1], part.n_classes, rng)
    except ConfigError as found:
        error = found
    raise_together(comm, error)
    first = next(iter(dict(model.named_parameters()))).split(".")[:2]
    place = slice(1, 2) if first[-1].isdigit() else slice(2)  # convs.0 and activations.0 are one layer

    def decay(name):
        return config.weight_decay if config.weight_decay_on == "all" or name.split(".")[place] == first[place] else 0.0

    def optimizer(flat):
        if config.optimizer == "sgd":
            return optim.SGD(flat, config.lr, momentum=0.9, weight_decay=decay)
        return optim.Adam(flat, config.lr, weight_decay=decay, decoupled=config.optimizer == "adamw")

    rows = part.rows
    return Trainer(part.graph, model, rows.features, rows.labels, rows.train, rows.val, rows.test,
                   optimizer=optimizer, rng=rng, schedule=schedule)


def _resume(comm, config, trainer, resumed):
    """Put a checkpoint's state into the trainer; return the epoch to go on from and the best so far."""
    tensors, meta = resumed
    error, best = None, Best()
    try:
        if meta["seed"] != config.seed:
            raise CheckpointError(f"checkpoint {config.resume}: seed is {meta['seed']}, but --seed is {config.seed}")
        if meta["epoch"] > config.epochs:
            raise CheckpointError(f"checkpoint {config.resume}: epoch {meta['epoch']} is past --epochs {config.epochs}")
        best.state = checkpoint.restore_state(trainer, tensors, meta)
    except CheckpointError as found:
        error = found if str(config.resume) in str(found) else CheckpointError(f"checkpoint {config.resume}: {found}")
    raise_together(comm, error)
    best.epoch, best.scores = meta["best"]["epoch"], meta["best"]["scores"]
    return meta["epoch"], best


def _run(comm, config, trainer, part, start, best, run_dir, tick):
    root, seconds = comm.rank == 0, []
    metrics = report.Metrics(run_dir / "metrics.jsonl", start) if root else None
    progress = report.Progress(config.progress, start, config.epochs) if root else None

    def save(epoch):
        meta = {"epoch": epoch, "seed": config.seed, "model": config.model, "best": {"epoch": best.epoch, "scores": best.scores}}
        checkpoint.write(run_dir / "checkpoint.safetensors", trainer, meta, best.state)

    def on_epoch(record):
        tick()
        seconds.append(record["seconds"])
        if root:
            metrics.write(record)
            progress.update(record)
        if config.checkpoint_every and record["epoch"] % config.checkpoint_every == 0 and record["epoch"] < config.epochs:
            save(record["epoch"])
        if record["epoch"] - start == config.trace_epochs:
            part.graph.profile.trace = None

    try:
        with trace.recording(comm, part.graph.profile) if config.trace else nullcontext() as recorded:
            fit(trainer, config.epochs, start=start, eval_every=config.eval_every, best=best, on_epoch=on_epoch)
    finally:
        if root:
            progress.close()
            metrics.close()
    save(config.epochs)
    counted = report.collect(comm, part.graph, part.memory, seconds)
    if root:
        print(report.table(config, comm.size, part.summary, counted, best, len(seconds), run_dir), flush=True)
        if config.json:
            print(report.json_line(config, comm.size, counted, best), flush=True)
    if config.trace:
        trace.write(comm, config.trace, recorded)
    return counted
