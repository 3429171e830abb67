"""The training command's options: of each its default, its type or choices, and what `--help` says of it."""

from typing import Any

from sarlite.command import byte_size, every, fanouts, share_or_file
from sarlite.minibatch.hec import CHOICES, HEC
from sarlite.minibatch.sampler import KINDS
from sarlite.minibatch.seeds import BATCHES
from sarlite.nn.decoders import DECODERS
from sarlite.nn.readout import READOUTS
from sarlite.propagation import NORMALIZATIONS, CorrectAndSmooth
from sarlite.sar.operators.evaluation import EVALUATIONS
from sarlite.sar.schedule.modes import MODES
from sarlite.sar.schedule.schedule import ROWS
from sarlite.tape.numerics import NUMERICS
from sarlite.tasks.metrics import EVERY
from sarlite.tasks.negatives import SAMPLERS
from sarlite.tasks.task_losses import LOSSES
from sarlite.tasks.task_table import TASKS
from sarlite.train.graphs import GraphOptions
from sarlite.train.link_options import LinkOptions

LINKS, GRAPHS = LinkOptions(), GraphOptions()
GROUPS: dict[str, dict[str, tuple[Any, Any, str]]] = {  # title: option: default, type or choices, help
    "what": {
        "data": ("sbm:", str, "native directory, edges:FILE, tables:FILE.toml, planetoid:PATH/cora, npz:FILE, ogb:DIR, "
                 "sbm:nodes=10000,... or rmat:...; sets of graphs: tu:DIR or ogbg:DIR; relational graphs: native "
                 "directory, mag:DIR or relational:nodes=10000,..."),
        "model": ("sage", str, "gcn, sage, gat, gatv2, gin, gcnii, pna, appnp, sgc, sign; for relational data rgcn, "
                  "rgat; or path/to/file.py:Class"),
        "config": (None, str, "TOML file with these options"),
        "self-loops": (None, bool, "add the self loops that are missing [gcn, gat, gatv2, gcnii, appnp and sgc yes, "
                       "others no]"),
        "edge-weights": (None, bool, "use the data's edge weights [gcn, gcnii, appnp, sgc and sign yes; other models "
                         "need the flag if the data have weights]"),
        "edge-features": (None, bool, "use the data's edge features: in gat's scores, or in the messages of a model of "
                          "your own [the flag is needed if the data have edge features]"),
        "normalize-features": (False, bool, "scale each node's features to sum 1"),
    },
    "model": {
        "layers": (None, int, "number of layers"),
        "hidden": (None, int, "hidden features; for gat and gatv2, of each head"),
        "heads": (None, int, "attention heads"),
        "out-heads": (None, int, "attention heads of the last layer"),
        "out-concat": (None, bool, "put the last layer's heads side by side, else average the heads"),
        "dropout": (None, float, "share of dropped features"),
        "input-dropout": (None, float, "share of dropped input features"),
        "attention-dropout": (None, float, "share of dropped attention coefficients"),
        "aggregator": (None, ("mean", "max-pool"), "how neighbours are summed up"),
        "gat-form": (None, ("standard", "paper"), "for gat: scores from z = W h, or from relu(W h + b) as in "
                     "DistGNN-MB Eq. 2"),
        "residual": (None, bool, "residual connections"),
        "hops": (None, int, "steps of propagation"),
        "teleport": (None, float, "for appnp and gcnii: weight of a node's own row in each step; the row is the "
                     "prediction (appnp) or the first hidden row (gcnii)"),
        "identity-decay": (None, float, "for gcnii: how fast later layers come near the identity, the paper's lambda"),
        "n-bases": (None, int, "for rgcn: each relation's weight is a sum over N bases; without the flag each relation "
                    "has a weight of its own"),
        "embedding": (None, int, "for rgcn and rgat: width of the learned rows of node types without features"),
        "relation-weights": (None, EVALUATIONS, "for rgcn: multiply by the weight inside the message, or aggregate "
                             "first; by default the way that costs fewer bytes"),
        "activation": (None, ("relu", "elu"), "activation between layers"),
        "batch-norm": (None, bool, "batch norm over all ranks between layers"),
        "dtype": ("float32", ("float32", "float64"), "number type of parameters and activations"),
    },
    "training": {
        "task": (None, tuple(TASKS), "what the labels must be: one class, several of 0 or 1, or numbers [as the "
                 "data say]; link: edges are predicted, and labels are ignored"),
        "loss": (None, tuple(dict.fromkeys(name for losses in LOSSES.values() for name in losses)), "loss to "
                 "minimise [by task: cross-entropy; bce; squared; bce]"),
        "metric": (None, EVERY, "metric of each split; the best epoch has the best validation metric [by task: "
                   "accuracy; roc-auc; rmse; roc-auc]"),
        "epochs": (100, int, "number of epochs"),
        "lr": (0.01, float, "learning rate"),
        "lr-schedule": ("constant", str, "constant, cosine, step:EVERY:FACTOR, plateau:FACTOR:PATIENCE, or "
                        "warmup:EPOCHS:SCHEDULE"),
        "clip-norm": (None, float, "largest allowed norm of all gradients together; larger gradients are scaled down"),
        "patience": (None, int, "end after so many epochs without a better validation metric [never]"),
        "weight-decay": (0.0, float, "L2 penalty: RATE / 2 * w^2 joins the loss"),
        "weight-decay-on": ("all", ("all", "first"), "all parameters, or the first layer's (Kipf & Welling)"),
        "optimizer": ("adam", ("adam", "adamw", "sgd"), "optimizer"),
        "seed": (0, int, "seed of initial parameters, dropout and partition"),
        "eval-every": (1, int, "epochs between evaluations"),
        "mfg": (False, bool, "message-flow graphs: each layer computes only nodes that reach a labelled node"),
        "label-inputs": (None, float, "share of the training nodes whose labels are inputs in an epoch; the loss is "
                         "the mean over the other training nodes"),
    },
    "links, of --task link, and labels of edges": {
        "edge-labels": (None, str, "FILE,labels=COLUMN: a table of edges, or of any pairs, with the labels to "
                        "predict; --task says what the labels are [classify]; with split=COLUMN of train, val or "
                        "test, or time=COLUMN: the latest rows are tested on"),
        "link-relation": (None, str, "for relational data: relation to predict, as user.buys.item, several with commas "
                          "between, or all [the only relation]"),
        "decoder": (None, tuple(DECODERS),
                    "how the rows of a link's ends become a score or label [dot; for labels mlp]"),
        "link-width": (None, int, f"width of a node's row that the model makes and the decoder takes [{LINKS.width}]"),
        "link-val": (None, share_or_file, "links to validate on, which bring no messages: a share of the edges, or a "
                     f"file of links, source and destination [{LINKS.val}]"),
        "link-test": (None, share_or_file, f"links to test on, likewise a share or a file [{LINKS.test}]"),
        "link-split": (None, str, "FILE,split=COLUMN: a table of the edges, whose column has train, val or test; or "
                       "FILE,time=COLUMN: test on the latest links, validate on the links before"),
        "link-disjoint": (None, float, "this share of the training links is trained on and brings no messages in "
                          "training; the other training links only bring messages [each link does both]"),
        "negatives": (None, int, f"negatives of each link: pairs without a link, drawn anew each epoch "
                      f"[{LINKS.negatives}]"),
        "eval-negatives": (None, int, "negatives of each link in evaluation, the same each time [for roc-auc and ap "
                           "1, else 100]"),
        "negative-sampler": (None, str, f"one of {', '.join(SAMPLERS)}: draw both ends of a negative; or keep the "
                             "link's head and draw the tail; or draw the tail from the tails of the step's links; or "
                             "FILE: pairs of a head and a hard tail, a file as for --link-val [for roc-auc and ap "
                             "uniform, else per-source]"),
        "eval-negative-sampler": (None, str, "how evaluation's negatives are drawn [as in training, if that is "
                                  "uniform or per-source]"),
        "filtered": (None, bool, "no negative of evaluation is a link of any split [yes]"),
    },
    "graphs, of data that are a set of graphs": {
        "readout": (None, READOUTS, f"how the rows of a graph's nodes become the graph's row [{GRAPHS.readout}]"),
        "readout-width": (None, int, "width of a node's row that the model makes and the readout takes "
                          f"[{GRAPHS.width}]"),
    },
    "correct and smooth": {
        "correct-and-smooth": (False, bool, "after training, correct and smooth the best model's output (Huang et "
                               "al.)"),
        "correct-alpha": (None, float, "share of neighbours in an iteration over errors "
                          f"[{CorrectAndSmooth.correct_alpha}]"),
        "correct-iterations": (None, int, "iterations over errors; 0 does not correct "
                               f"[{CorrectAndSmooth.correct_iterations}]"),
        "correct-normalization": (None, NORMALIZATIONS, "normalise A as D^-1/2 A D^-1/2, D^-1 A or A D^-1 "
                                  f"[{CorrectAndSmooth.correct_normalization}]"),
        "correct-scale": (None, float, "factor of the spread errors [automatic, by row]"),
        "smooth-alpha": (None, float, "share of neighbours in an iteration over scores "
                         f"[{CorrectAndSmooth.smooth_alpha}]"),
        "smooth-iterations": (None, int, "iterations over scores; 0 does not smooth "
                              f"[{CorrectAndSmooth.smooth_iterations}]"),
        "smooth-normalization": (None, NORMALIZATIONS, f"as --correct-normalization "
                                 f"[{CorrectAndSmooth.smooth_normalization}]"),
    },
    "minibatches": {
        "batch-size": (0, int, "seeds of all ranks in a step; 0 trains full-batch"),
        "fanouts": (None, fanouts, "in-edges picked for a row, one number a layer, the first layer first; all takes "
                    "all in-edges"),
        "sampler": (None, KINDS, "how in-edges are picked [uniform]"),
        "sample-ahead": (None, int, "batches that a thread samples ahead [1]"),
        "batches": (None, tuple(BATCHES), "global: cut one order of all training nodes into steps; balanced: cut "
                    "each rank's own training nodes into even parts [global on one rank and for --remote exact, else "
                    "balanced]"),
        "remote": (None, ("exact", "hec", "local"), "at a neighbour of another rank: exact, the owner computes the "
                   "neighbour; hec, a cache has the neighbour's last row; local, the edge is left out [exact]"),
        "hec-lines": (None, int, f"rows that each layer's cache holds [{HEC.lines}]"),
        "hec-life": (None, int, f"steps for which a row is used after its arrival [{HEC.life}]"),
        "hec-limit": (None, int, f"most rows pushed to a peer for a layer in a step [{HEC.limit}]"),
        "hec-delay": (None, int, f"steps from the push of a row to its arrival at the peers [{HEC.delay}]"),
        "on-miss": (None, CHOICES["on_miss"], "if the cache lacks a row: leave the row's edge out, use zeros, or use "
                    f"other picks [{HEC.on_miss}]"),
        "push": (None, CHOICES["push"], "rows to push: paper, the rows that the batch made; demand, the rows that "
                 f"peers will ask for [{HEC.push}]"),
        "push-by": (None, CHOICES["push_by"], "which rows go first if there are more than --hec-limit "
                    f"[{HEC.push_by}]"),
        "halo-features": (None, CHOICES["features"], "features of remote rows: keep, fetch all once before training; "
                          "cache; auto: keep if they fit [auto]"),
        "lr-scale": (None, ("none", "sqrt", "linear"), "multiply the learning rate by a function of the number of "
                     "ranks [none]"),
        "eval-fanouts": (None, fanouts, "evaluate on sampled in-edges [exactly, on the full graph]"),
    },
    "ranks": {
        "mode": ("sar", tuple(MODES), "how remote rows arrive: docs/which-mode.md tells which to choose"),
        "backward": (None, ("push", "fetch"), "push gradients to the rows' owners, or let the owners fetch the "
                     "gradients of their rows' destinations [push; for GCN and GraphSAGE in mode broadcast, with "
                     "--rows bfloat16 and with exact numerics fetch]"),
        "prefetch": (None, int, "peers whose rows a thread fetches ahead [1 between hosts or if each rank has a "
                     "core to spare, else 0]"),
        "partition": ("stored", str, "metis, fennel (less memory), random, contiguous, or a file with the part of "
                      "each node; stored: the division of the data if there is one, else metis"),
        "order": ("stored", ("stored", "none", "metis", "cluster"), "order of a part's nodes in memory: as stored "
                  "with the data, none (by id), or nodes that share neighbours together, by metis or by cluster (label "
                  "propagation, less memory)"),
        "balance": ("auto", str, "what METIS or Fennel makes even: some of nodes,edges,train; auto: as "
                    "stored, else nodes and train, and edges if the degrees are skewed"),
        "memory-limit": (None, byte_size, "memory of each rank, such as 2GiB; training does not start if it needs more "
                         "[the memory of the machine or container, for all its ranks]"),
        "dry-run": (False, bool, "print the memory and the bytes that each mode would take on each rank, and train "
                    "nothing"),
        "numerics": ("fast", NUMERICS, "exact: the same bits for any number of ranks and threads, any mode, "
                     "partition and processor"),
        "rows": ("float32", ROWS, "number type in which rows that edges gather are stored and sent; sums and all "
                 "else stay float32"),
        "threads": (0, int, "threads of each rank; 0 divides the host's cores among its ranks"),
        "ranks": (1, int, "ranks as threads of this process, without MPI"),
        "stall-timeout": (300.0, float, "end the run after so many seconds without progress on any rank; 0 never"),
    },
    "files": {
        "run-dir": (None, str, "folder for the run's files [runs/TIME-MODEL]"),
        "checkpoint-every": ("10min", every, "epochs, or time such as 90s, 10min or 2h, between checkpoints; 0 "
                             "writes a checkpoint only at the end"),
        "resume": (None, str, "checkpoint to go on from; the checkpoint has data, model and all other options; give "
                   "only what changes"),
        "json": (False, bool, "end standard output with one line of JSON"),
        "trace": (None, str, "write a timeline of every rank, which ui.perfetto.dev opens"),
        "trace-epochs": (None, int, "number of epochs that --trace records, from the first on [3]"),
        "tensorboard": (None, str, "folder for each epoch's numbers, for TensorBoard"),
        "progress": ("auto", ("auto", "bar", "lines", "none"), "bar, or a line every few seconds [bar on a terminal "
                     "and in a notebook]"),
        "propagated": (None, str, "for sgc and sign: folder that keeps the propagated features for later runs"),
        "verify": (True, bool, "check the data files' sha256 first"),
    },
}
OPTIONS = {name.replace("-", "_"): spec for group in GROUPS.values() for name, spec in group.items()}
MODEL_OPTIONS = tuple(name.replace("-", "_") for name in GROUPS["model"] if name != "dtype")
"""Options that a model's class takes, where it takes them."""
KEYWORDS = {"gat_form": "form", "relation_weights": "evaluation"}
"""Keywords of a model's class that have another name than the option."""
MINIBATCH_OPTIONS = tuple(name.replace("-", "_") for name in GROUPS["minibatches"] if name != "batch-size")
HEC_OPTIONS = {
    "hec_lines": "lines", "hec_life": "life", "hec_limit": "limit", "hec_delay": "delay", "on_miss": "on_miss",
    "push": "push", "push_by": "push_by", "halo_features": "features",
}  # fmt: skip
"""Options of the cache of embeddings alone, with the names of `minibatch.HEC`'s arguments."""
SMOOTHING_OPTIONS = {
    name.replace("-", "_"): "scale" if name == "correct-scale" else name.replace("-", "_")
    for name in GROUPS["correct and smooth"] if name != "correct-and-smooth"
}  # fmt: skip
"""Options of Correct and Smooth, with the names of `CorrectAndSmooth`'s arguments."""
LINK_OPTIONS = {
    name.replace("-", "_"): name.removeprefix("link-").removeprefix("edge-").replace("negative-", "").replace("-", "_")
    for name in GROUPS["links, of --task link, and labels of edges"]
}  # fmt: skip
"""Options of links, with the names of `LinkOptions`' fields."""
GRAPH_OPTIONS = {"readout": "readout", "readout_width": "width"}
"""Options of sets of graphs, with the names of `GraphOptions`' fields."""
OPTION_OF = {field: option for option, field in {**LINK_OPTIONS, **SMOOTHING_OPTIONS}.items() if field not in OPTIONS}
"""Of fields of `LinkOptions` and `CorrectAndSmooth` that have another name than the option."""
METAVARS = {
    "data": "SPEC", "model": "MODEL", "config": "FILE.toml", "dropout": "SHARE", "input-dropout": "SHARE",
    "attention-dropout": "SHARE", "lr": "RATE", "lr-schedule": "SCHEDULE", "weight-decay": "RATE",
    "eval-every": "EPOCHS", "prefetch": "PEERS", "partition": "METHOD", "balance": "WHAT", "stall-timeout": "SECONDS",
    "run-dir": "DIR", "checkpoint-every": "EPOCHS|TIME", "resume": "FILE", "trace": "FILE.json",
    "trace-epochs": "EPOCHS", "tensorboard": "DIR", "batch-size": "SEEDS", "fanouts": "K,K,..",
    "eval-fanouts": "K,K,..", "teleport": "SHARE", "identity-decay": "RATE", "label-inputs": "SHARE",
    "propagated": "DIR", "correct-alpha": "SHARE", "correct-scale": "FACTOR", "smooth-alpha": "SHARE",
    "hec-lines": "ROWS", "hec-life": "STEPS", "hec-limit": "ROWS", "hec-delay": "STEPS", "patience": "EPOCHS",
    "clip-norm": "NORM", "memory-limit": "SIZE", "link-val": "SHARE|FILE", "link-test": "SHARE|FILE",
    "link-split": "TABLE", "edge-labels": "TABLE", "link-relation": "RELATION", "link-disjoint": "SHARE",
    "negative-sampler": "SAMPLER|FILE", "eval-negative-sampler": "SAMPLER|FILE",
}  # fmt: skip
"""What stands for an option's value in `--help`: the unit, or what the value is; of other whole numbers N."""
