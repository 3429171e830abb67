"""Short runs of the training command on a small relational graph, in this process."""

from sarlite.cli import config, run
from sarlite.comm import Solo, threads
from tests.helpers.train.training_runs import metrics

SPEC = "relational:nodes=300,edges=2000,classes=3,features=4,noise=2,train=0.3,seed=1"
FLAGS = ["--data", SPEC, "--epochs", "2", "--lr", "0.05", "--optimizer", "sgd", "--seed", "5", "--dtype", "float64"]


def relational_run(run_dir, *flags, comm=None, without_defaults=False):
    """Train on the relational test graph with `flags`, after these tests' flags unless `without_defaults`; return each epoch's metrics."""
    words = [*([] if without_defaults else FLAGS), "--threads", "1", "--progress", "none", "--run-dir", run_dir, *flags]
    options = config.parse([str(word) for word in words])
    if options.machine.ranks > 1:
        threads.run(options.machine.ranks, run.train, options)
    else:
        run.train(comm or Solo(), options)
    return metrics(run_dir)
