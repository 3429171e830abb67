"""One whole run on one rank: options, data, graph, model, trainer, training, checkpoint and report."""

import sys
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

from sarlite import nn, optim
from sarlite.cli import class_options, class_report, limit, link_report, resume
from sarlite.cli import run_report as report
from sarlite.cli.combinations import Run, refuse
from sarlite.cli.config import naming_flags, to_toml
from sarlite.cli.dry_run import dry_run
from sarlite.cli.folder import PREDICTIONS, Folder
from sarlite.cli.saving import Saving, restore
from sarlite.cli.settings import settings
from sarlite.cli.smoothing_run import after_training
from sarlite.comm import together
from sarlite.comm.interrupt import Interrupts
from sarlite.comm.launch import rank_threads
from sarlite.command import refuse_input, show
from sarlite.errors import ConfigError
from sarlite.graph.graph_set import GraphSet
from sarlite.numerics import using
from sarlite.numerics.exact_sum import named
from sarlite.profile import trim
from sarlite.tasks.task_table import task_type
from sarlite.tasks.thresholds import threshold_rule
from sarlite.train import batch_sources, checkpoint, propagated, trace
from sarlite.train.baseline import baselines, row_features
from sarlite.train.edge_values import ARRAYS
from sarlite.train.epochs import fit
from sarlite.train.identity import identity, of_times
from sarlite.train.link_outcome import link_outcome
from sarlite.train.load import kind, load, widths
from sarlite.train.loop import Trainer
from sarlite.train.model_loading import make_model
from sarlite.train.outcome import outcome
from sarlite.train.parameters_hash import parameters_hash
from sarlite.train.row_keys import row_keys
from sarlite.train.stopping import Best, Stopping
from sarlite.user_code import errors_of


@naming_flags
def train(comm, options, tick=lambda: None, interrupts=None):
    """Load the data, train a model, write and print the results, and return the run's measurements. `tick()` is called whenever this rank
    makes progress, and `interrupts` postpones signals to the end of an epoch. Collective.

    No file in the run's folder changes before the first epoch has succeeded.

    Parameters
    ----------
    comm : Communicator
    options : RunOptions
    tick : callable
        tick() is called whenever this rank makes progress.
    interrupts : Interrupts, optional
        Handlers of signals. During an epoch, the first signal is postponed to the end of the epoch.

    Returns
    -------
    dict
        Measurements of the run, which `--json` prints.

    Raises
    ------
    SarliteError
        On every rank together: an option, a file or the data are invalid.
    SystemExit
        On every rank, with status 128 + the signal's number, after a signal. Rank 0 has then written a checkpoint and
        printed the command that continues the run.
    """
    run = together(comm, lambda: settings(options))
    facts = Run.of(options.values, run.model.cls, kind(comm, run.source.spec))
    together(comm, lambda: refuse(facts))
    resumed = checkpoint.read(comm, options.output.resume) if options.output.resume else None
    if resumed:
        together(comm, lambda: resume.check_options(options, resumed[1]))
    with closing(Folder(comm, run.output.run_dir, run.output.resume, Path(run.model.spec).stem)) as folder:
        for argument, path in (("trace", run.output.trace), ("propagated", run.training.propagated)):
            if path:
                together(comm, lambda argument=argument, path=path: folder.check_other(argument, path))
        if run.output.trace:
            inputs = {"--config": run.output.config, "--resume": run.output.resume}
            together(comm, lambda: refuse_input("trace", run.output.trace, inputs))
            trace.check_path(comm, run.output.trace)
        together(comm, lambda: comm.rank == 0 and report.events(run.output.tensorboard, check=True))
        tick()
        return _train(comm, options, run, facts, resumed, folder, tick, interrupts or Interrupts())


def _train(comm, options, run, facts, resumed, folder, tick, interrupts):
    toml, stored = to_toml(options), resume.stored(options)
    machine = options.machine
    run = run._replace(graph=run.graph.resolved(comm, rank_threads(comm, machine.threads)))
    if machine.dry_run:
        run = run._replace(training=replace(run.training, propagated=None))  # a dry run writes no folder
    if resumed:
        run = run._replace(source=run.source._replace(schema=resumed[1].get("schema")))
    with errors_of(options.schedule.mode, "mode"):
        part = load(comm, run.source, run.graph, folder.path, tick)
    tell(comm, part.left_out)
    facts = facts._replace(task=part.task)
    together(comm, lambda: refuse(facts))
    memory = limit.of_run(comm, part, machine.memory_limit, comm.size if machine.ranks > 1 else 1)

    data, used = identity(part.graph, part.rows, part.n_classes), _used(run, part.graph)
    data |= {"times": of_times(part.graph, part.times)} if part.times else {}
    targets = task_of(run, part).read_targets(run, part)
    data |= targets.identity
    if resumed:
        together(comm, lambda: resume.check_data(options, resumed[1], data))
    part = targets.apply(part)
    if resumed:
        together(comm, lambda: resume.check_classes(options, resumed[1], part.class_names))
    training, decided = class_options.of_data(comm, run.training, part)
    run = run._replace(training=training)
    decided += link_report.default_lines(training, options.links, run.links)
    decided += _recency_lines(run, part)
    if comm.rank == 0 and decided:
        print("\n".join(decided), flush=True)
    rng = nn.Random(run.training.seed)
    model = new_model(comm, run, part, rng)
    together(comm, lambda: refuse(facts._replace(model=model)))
    limit.check_estimate(comm, memory, run, part)
    trainer = make_trainer(comm, run, part, model, rng, data)
    _warn_of_batch_norm(comm, run, model)
    if threshold_rule(run.training.threshold).chosen and not trainer.counts["val"]:
        raise ConfigError(f"threshold {run.training.threshold}: the validation rows choose the threshold, but there are none",
                          "threshold")

    stored |= {option: True for option in ARRAYS.values() if used[option]}
    about = {"seed": run.training.seed, "model": run.model.spec, "options": stored, "data": data, "task": part.task,
             "used": used, "positive": trainer.task.positive, "schema": part.schema}
    if part.class_names:
        about["class_names"] = part.class_names
    if part.time_kind:
        about["time_kind"] = part.time_kind
    keys = row_keys(model, part.graph, part.names)
    without_edges = None
    if run.training.baseline and not machine.dry_run and part.task != "link":
        features, ids = row_features(part)
        without_edges = baselines(comm, trainer.task, features, ids, trainer.labels, trainer.rows, part.n_classes)
        del features
    part = part._replace(rows=None)  # the trainer holds all rows that it needs
    trim()  # return the memory of the rows, and of messages with features of halo rows
    stopping = Stopping(run.training.patience, optim.plateau_of(run.schedule))
    start, best = 0, Best(trainer.task)
    if resumed:
        start, best = restore(trainer, resumed, run.output.resume, run.batches, keys)
    if machine.dry_run:
        with errors_of(run.model.spec):
            return dry_run(comm, run, trainer, part, memory)
    saving = Saving(folder, trainer, best, stopping, about, toml, run, start, interrupts, keys,
                    one_process=machine.ranks > 1)
    with errors_of(run.model.spec):
        return _report(run, trainer, part, saving, without_edges, *_fit(run, trainer, part, saving, tick, memory))


def tell(comm, texts):
    """Print the lines `texts` to standard error, on rank 0 only."""
    for text in texts if comm.rank == 0 else ():
        print(text, file=sys.stderr, flush=True)


def new_model(comm, run, part, rng):
    """Return the model of `run` with initial parameters drawn from `rng`. The data `part` determine its numbers of inputs and
    outputs. Collective.

    Parameters
    ----------
    comm : Communicator
    run : Settings
    part : load.Shard
        This rank's part of the data. Labels as inputs widen the model's input.
    rng : nn.Random
        Generator of the initial parameters, in the same state on every rank.
    """
    task, n_in, n_out = task_of(run, part), widths(part.rows), part.n_classes
    n_more = task.n_more_inputs(run.training, n_out)
    n_in = n_in + n_more if n_more else n_in
    nodes = getattr(part.graph, "nodes", part.graph)  # rows of a graph of links are links, not nodes

    def encoder(width, batches=None):
        return make_model(run.model, n_in, width, rng, nodes, batches)

    return together(comm, lambda: task.make_model(encoder, run, nodes, n_out, rng))


def task_of(run, part):
    """Return the class of the task of `run` on the data `part`, a subclass of `Task`: for nodes, links, labelled edges or whole graphs."""
    return task_type(part.task, labelled_edges=run.links.edge_labels is not None,
                     graph_set=isinstance(part.graph, GraphSet))


def make_trainer(comm, run, part, model, rng, data=None):
    """Return a trainer of `model` on the data `part`, with the options of `run`. `rng` made the model's parameters. `data`, the
    identity of the data, is needed only for --propagated. Collective.

    Parameters
    ----------
    comm : Communicator
    run : Settings
    part : load.Shard
    model : Module
    rng : nn.Random
        Generator that made the model's parameters.
    data : dict, optional
        `identity` of the data, which is needed if a folder keeps propagated features.
    """
    training, rows = run.training, part.rows
    task = together(comm, lambda: _task(run, part))
    lr = training.lr * (batch_sources.LR_SCALES[run.batches.lr_scale](comm.size) if run.batches else 1)
    with errors_of(run.model.spec):
        optimizer = together(comm, lambda: training.make_optimizer(model, lr))
    numerics = named(training.numerics, part.graph.comm)  # the graph's communicator counts sent bytes
    with using(numerics):
        features = propagated.inputs(comm, model, part, data, training.propagated, run.source.verify)
    batches = batch_sources.batches(comm, run, part, task, model, features)
    if run.batches:
        features = batches["batches"].x  # if the loader copied the features, free the original
    return Trainer(part.graph, model, features, rows.labels, rows.train, rows.val, rows.test, **batches,
                   optimizer=optimizer, rng=rng, schedule=run.schedule, task=task,
                   clip_norm=training.clip_norm, numerics=numerics or training.numerics)


def _task(run, part):
    task = task_of(run, part).of_run(part.task, run.training, part.n_classes)
    task.check_width(part.n_classes)
    return task


def _fit(run, trainer, part, saving, tick, memory_limit):
    """Train until the last epoch or a signal; `saving` writes files and checkpoints, and `memory_limit` is checked after the first step.
    Return (list of each epoch's seconds, total seconds, recorded trace or None, the dict of the best model's outcome or None). Collective.

    Returns
    -------
    seconds : list of float
        Time of each epoch.
    total : float
        Seconds of all epochs, with evaluations and checkpoints.
    recorded : Trace or None
    best_outcome : dict or None
        The best model's `outcome`; None if nothing was trained, or a signal ended the run early.
    """
    comm, profile, epochs, seconds = trainer.comm, trainer.graph.profile, run.training.epochs, []
    begin = time.perf_counter()
    shown = report.EpochProgress(run.output.progress if comm.rank == 0 else "none", saving.start, epochs,
                            len(trainer.batches), trainer.task.key)

    events = report.events(run.output.tensorboard if comm.rank == 0 else None)

    def on_step(done, loss):
        tick()
        memory_limit.check_once(comm)
        shown.step(done, loss)

    def on_epoch(record):
        tick()
        seconds.append(record["seconds"])
        if run.training.numerics == "exact":
            record["parameters"] = parameters_hash(trainer.model, comm)
        stops = saving.on_epoch(record)
        shown.update(record)
        events(record)
        if record["epoch"] - saving.start == run.output.trace_epochs:
            profile.trace = None
        return stops

    def on_divergence(text):
        if comm.rank == 0:
            print(f"warning: {text} (--lr)", file=sys.stderr, flush=True)

    with saving.interrupts.postponed():
        if saving.start < epochs:
            saving.try_disk()
        with closing(shown), trace.recording(comm, profile) if run.output.trace else nullcontext() as recorded:
            fit(trainer, epochs, start=saving.start, eval_every=run.training.eval_every, best=saving.best,
                stopping=saving.stopping, on_epoch=on_epoch, on_step=on_step, on_divergence=on_divergence)
        total, best_outcome = time.perf_counter() - begin, None
        if seconds and not (saving.signum and saving.epoch < epochs):
            best_outcome = outcome(trainer, saving.best, part.n_classes, part.class_names,
                                   threshold_rule(run.training.threshold))
            saving.decide(best_outcome.get("threshold"))
            in_time = run.batches is not None and run.batches.temporal is not None  # popularity compares on the full graph
            if part.task == "link" and run.training.baseline and not in_time:
                best_outcome["compared"] = link_outcome(trainer, saving.best)
        saving.save()
    saving.meet_signals()
    return seconds, total, recorded, best_outcome


def _report(run, trainer, part, saving, baseline_scores, epoch_seconds, total_seconds, recorded_trace, best_outcome):
    """Write the trace, apply Correct and Smooth, print and write the results, and return the run's measurements as a dict. The arguments
    after `saving` were measured during training. After a signal, which `saving` has noticed, the process exits before Correct and Smooth.
    Collective.
    """
    comm, folder, smooth = trainer.comm, saving.folder.path, run.smoother
    if run.output.trace:
        trace.write(comm, run.output.trace, recorded_trace)
    if saving.signum and (smooth or saving.epoch < run.training.epochs):
        saving.leave()
    smoothed = after_training(trainer, saving.best, smooth, folder / PREDICTIONS) if smooth else None
    counted = report.collect(comm, part.graph, part.memory, epoch_seconds) | trainer.counted()
    counted |= {"left_out": trainer.left_out} if trainer.left_out else {}
    counted |= {"correct_and_smooth": smoothed} if smoothed else {}
    counted |= {"baseline": report.finite(baseline_scores)} if baseline_scores else {}
    counted |= {name: report.finite(best_outcome[name]) for name in ("calibration", "threshold", "compared")
                if name in (best_outcome or {})}
    counted |= trainer.task.summary(trainer.counts)
    pictured = report.pictured(comm, part.graph)
    early = saving.epoch < run.training.epochs and saving.stopping.ends(saving.epoch, saving.best)
    times = {**part.seconds, "epochs": total_seconds, "n": len(epoch_seconds), "early": early}
    if comm.rank == 0:
        for text in (*class_report.warnings(trainer.task, best_outcome, part.class_names),
                     *link_report.popularity_warnings(counted.get("compared"))):
            print(f"warning: {text}", file=sys.stderr, flush=True)
        show(report.table(run, comm.size, part.summary, counted, saving.best, times, folder, saving.one_process))
        if run.output.json:
            show(report.json_line(run, comm.size, counted, saving.best))
    if epoch_seconds:  # without a trained epoch, the summary of the complete run stays
        summary = report.summary(run, comm.size, part.summary, counted, saving.best, times) | pictured
        if best_outcome:
            summary["outcome"] = report.finite(best_outcome)
        together(comm, lambda: comm.rank == 0 and saving.folder.end(summary))
    if saving.signum:
        saving.leave(complete=True)
    return counted


def _recency_lines(run, part):
    """Return a line, in a list, that tells the unit of the edge feature --edge-recency; [] for a run without this feature."""
    if not run.batches or not run.batches.edge_recency:
        return []
    unit = batch_sources.UNITS[part.time_kind or "integers"][1]
    return [f"edge recency: the last edge feature is log(1 + {unit} from the edge to the seed); 0 for an added self loop"]


def _used(run, graph):
    """Return {option: True or False} for the options about edge weights, edge features and label inputs: True if training uses these
    values. `graph` holds edge values only if they are used.
    """
    values = {option: getattr(graph, name, None) is not None for name, option in ARRAYS.items()}
    return {**values, "label_inputs": run.training.label_inputs is not None}


def _warn_of_batch_norm(comm, run, model):
    normalizes = any(isinstance(module, nn.BatchNorm) for _, module in model.named_modules())
    if run.training.mfg and normalizes and comm.rank == 0:
        show("warning: --mfg: batch norm takes its statistics over the computed nodes, so results differ from "
             "training on the full graph", sys.stderr)

