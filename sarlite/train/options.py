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
from sarlite.train.graphs import GraphOptions
from sarlite.train.link_options import LinkOptions
from sarlite.train.metrics import EVERY
from sarlite.train.negatives import SAMPLERS
from sarlite.train.tasks import LOSSES

LINKS, GRAPHS = LinkOptions(), GraphOptions()
GROUPS: dict[str, dict[str, tuple[Any, Any, str]]] = {  # title: option: default, type or choices, help
    "what": {
        "data": ("sbm:", str, "native directory, edges:FILE, tables:FILE.toml, planetoid:PATH/cora, npz:FILE, ogb:DIR, "
                 "sbm:nodes=10000,... or rmat:...; sets of graphs: tu:DIR or ogbg:DIR; relational graphs: native "
                 "directory, mag:DIR or relational:nodes=10000,..."),
        "model": ("sage", str, "gcn, sage, gat, gatv2, gin, gcnii, pna, appnp, sgc, sign; of relational data rgcn, rgat; or "
                  "path/to/file.py:Class"),
        "config": (None, str, "TOML file of these options"),
        "self-loops": (None, bool, "add the self loops that are missing [gcn, gat, gatv2, gcnii, appnp and sgc yes, "
                       "others no]"),
        "edge-weights": (None, bool, "count edges by the data's weights [gcn, gcnii, appnp, sgc and sign yes; others must "
                         "be told]"),
        "edge-features": (None, bool, "the data's edge features join the scores of gat; a model of your own has them "
                          "in its messages"),
        "normalize-features": (False, bool, "scale each node's features to sum 1"),
    },
    "model": {
        "layers": (None, int, "number of layers"),
        "hidden": (None, int, "hidden features; of gat and gatv2 of each head"),
        "heads": (None, int, "attention heads"),
        "out-heads": (None, int, "attention heads of the last layer"),
        "out-concat": (None, bool, "put the last layer's heads side by side, else average them"),
        "dropout": (None, float, "share of dropped features"),
        "input-dropout": (None, float, "share of dropped input features"),
        "attention-dropout": (None, float, "share of dropped attention coefficients"),
        "aggregator": (None, ("mean", "max-pool"), "how neighbours are summed up"),
        "gat-form": (None, ("standard", "paper"), "of gat: scores from z = W h, or from relu(W h + b) as in "
                     "DistGNN-MB Eq. 2"),
        "residual": (None, bool, "residual connections"),
        "hops": (None, int, "steps of propagation"),
        "teleport": (None, float, "share that a node's own rows have in each step: of appnp its prediction, of gcnii its "
                     "first hidden row"),
        "identity-decay": (None, float, "of gcnii: how fast later layers come near the identity, the paper's lambda"),
        "n-bases": (None, int, "of rgcn: bases that the relations' weights are sums of; without it each has a weight "
                    "of its own"),
        "embedding": (None, int, "of rgcn and rgat: width of the learned rows of node types without features"),
        "relation-weights": (None, EVALUATIONS, "of rgcn: inside the message, or aggregated first; by default what "
                             "costs fewer bytes"),
        "activation": (None, ("relu", "elu"), "between layers"),
        "batch-norm": (None, bool, "batch norm over all ranks between layers"),
        "dtype": ("float32", ("float32", "float64"), "of parameters and activations"),
    },
    "training": {
        "task": (None, tuple(LOSSES), "what the labels must be: one class, several of 0 or 1, or numbers [as the "
                 "data say]; link: edges are predicted, and labels are not looked at"),
        "loss": (None, tuple(dict.fromkeys(name for losses in LOSSES.values() for name in losses)), "what is "
                 "minimised [by task: cross-entropy; bce; squared; bce]"),
        "metric": (None, EVERY, "of each split; the best epoch has the best of validation [by task: accuracy; roc-auc; "
                   "rmse; roc-auc]"),
        "epochs": (100, int, "number of epochs"),
        "lr": (0.01, float, "learning rate"),
        "lr-schedule": ("constant", str, "constant, cosine, step:EVERY:FACTOR, plateau:FACTOR:PATIENCE, or "
                        "warmup:EPOCHS:SCHEDULE"),
        "clip-norm": (None, float, "the largest norm of all gradients together; larger ones are scaled down to it"),
        "patience": (None, int, "end after so many epochs without a better one by the metric [never]"),
        "weight-decay": (0.0, float, "L2 penalty: decay / 2 * w^2 joins the loss"),
        "weight-decay-on": ("all", ("all", "first"), "all parameters, or the first layer's (Kipf & Welling)"),
        "optimizer": ("adam", ("adam", "adamw", "sgd"), "optimizer"),
        "seed": (0, int, "seed of initial parameters, dropout and partition"),
        "eval-every": (1, int, "epochs between evaluations"),
        "mfg": (False, bool, "message-flow graphs: compute at each layer only nodes that reach a labelled one"),
        "label-inputs": (None, float, "share of the training nodes that show their labels as inputs in an epoch; the "
                         "loss is the others'"),
    },
    "links, of --task link, and labels of edges": {
        "edge-labels": (None, str, "FILE,labels=COLUMN: a table of the edges, or of any pairs, whose labels are predicted, as --task says "
                        "[classify]; with split=COLUMN of train, val or test, or time=COLUMN, of which the latest are to test on"),
        "link-relation": (None, str, "of relational data: the relation that is predicted, as user.buys.item [the only one]"),
        "decoder": (None, tuple(DECODERS), "how a link is scored, or labelled, from the rows of its ends [dot; of labels mlp]"),
        "link-width": (None, int, f"numbers in a node's row, which the model makes and the decoder takes [{LINKS.width}]"),
        "link-val": (None, share_or_file, "share of the edges that are links to validate on; they bring no messages; or a file "
                     f"of these links, source and destination [{LINKS.val}]"),
        "link-test": (None, share_or_file, f"share, or file, of the links to test on, likewise [{LINKS.test}]"),
        "link-split": (None, str, "FILE,split=COLUMN: a table of the edges, whose column has train, val or test; or "
                       "FILE,time=COLUMN: the latest links are to test on, those before to validate on"),
        "link-disjoint": (None, float, "share of the training links that are trained on and bring no messages in training, "
                          "where the others bring messages alone [each link does both]"),
        "negatives": (None, int, f"pairs without a link that a link is compared with, drawn anew each epoch "
                      f"[{LINKS.negatives}]"),
        "eval-negatives": (None, int, "the same in evaluation, where they stay [of roc-auc and ap 1, else 100]"),
        "negative-sampler": (None, str, f"one of {', '.join(SAMPLERS)}: both ends of a negative are drawn; or its tail, and the "
                             "head is the link's; or its tail, of the tails of the step's links; or FILE: pairs of a head and "
                             "a hard tail, as of --link-val [of roc-auc and ap uniform, else per-source]"),
        "eval-negative-sampler": (None, str, "likewise in evaluation [as in training, if that is uniform or per-source]"),
        "filtered": (None, bool, "evaluation's negatives are no links of any split [yes]"),
    },
    "graphs, of data that are a set of graphs": {
        "readout": (None, READOUTS, f"what is made of the rows of a graph's nodes [{GRAPHS.readout}]"),
        "readout-width": (None, int, f"numbers in a node's row, which the model makes and the readout takes [{GRAPHS.width}]"),
    },
    "correct and smooth": {
        "correct-and-smooth": (False, bool, "after training, correct and smooth the best model's output (Huang et "
                               "al.)"),
        "correct-alpha": (None, float, "share of an iteration that comes from neighbours, of errors "
                          f"[{CorrectAndSmooth.correct_alpha}]"),
        "correct-iterations": (None, int, f"iterations; 0 does not correct [{CorrectAndSmooth.correct_iterations}]"),
        "correct-normalization": (None, NORMALIZATIONS, "D^-1/2 A D^-1/2, D^-1 A or A D^-1 "
                                  f"[{CorrectAndSmooth.correct_normalization}]"),
        "correct-scale": (None, float, "what errors are multiplied by [automatic, by row]"),
        "smooth-alpha": (None, float, f"as --correct-alpha, of what is smoothed [{CorrectAndSmooth.smooth_alpha}]"),
        "smooth-iterations": (None, int, f"iterations; 0 does not smooth [{CorrectAndSmooth.smooth_iterations}]"),
        "smooth-normalization": (None, NORMALIZATIONS, f"as --correct-normalization "
                                 f"[{CorrectAndSmooth.smooth_normalization}]"),
    },
    "minibatches": {
        "batch-size": (0, int, "seeds of all ranks a step; 0 trains full-batch"),
        "fanouts": (None, fanouts, "in-edges picked a row, the first layer's first; all takes them all"),
        "sampler": (None, KINDS, "how in-edges are picked [uniform]"),
        "sample-ahead": (None, int, "batches that a thread samples ahead [1]"),
        "batches": (None, tuple(BATCHES), "one order of all training nodes, cut into steps, or each rank's own into "
                    "even parts [global on one rank and for exact, else balanced]"),
        "remote": (None, ("exact", "hec", "local"), "what happens at a neighbour of another rank: exact, its owner computes "
                   "it; hec, its last row comes from a cache; local, its edge is left out [exact]"),
        "hec-lines": (None, int, f"rows that each layer's cache holds [{HEC.lines}]"),
        "hec-life": (None, int, f"steps for which a cached row is used, from its arrival on [{HEC.life}]"),
        "hec-limit": (None, int, f"most rows pushed to a peer, a layer and step [{HEC.limit}]"),
        "hec-delay": (None, int, f"steps from when a row is pushed to when peers take it [{HEC.delay}]"),
        "on-miss": (None, CHOICES["on_miss"], "where the cache lacks a row: leave its edge out, take zeros, or take other "
                    f"picks [{HEC.on_miss}]"),
        "push": (None, CHOICES["push"], f"which rows are pushed: what each batch made, or what peers will ask for [{HEC.push}]"),
        "push-by": (None, CHOICES["push_by"], "which rows count more where there are too many to push "
                    f"[{HEC.push_by}]"),
        "halo-features": (None, CHOICES["features"], "fetch remote features once before training, or cache them "
                          "[auto: keep where they fit]"),
        "lr-scale": (None, ("none", "sqrt", "linear"), "multiply the learning rate by a function of the number of "
                     "ranks [none]"),
        "eval-fanouts": (None, fanouts, "evaluate on sampled in-edges [exactly, on the full graph]"),
    },
    "ranks": {
        "mode": ("sar", (*MODES, "auto"), "how remote rows arrive; auto: whichever costs least and fits"),
        "backward": (None, ("push", "fetch"), "push gradients to the rows' owners, or fetch those of the rows that "
                     "they went to [push; in broadcast fetch, of GCN and GraphSAGE; with --rows bfloat16 or exact numerics fetch]"),
        "columns": (1, int, "ranks that share their rows and divide the columns of sums, or heads; each holds the "
                    "structure of them all"),
        "prefetch": (None, int, "peers' rows fetched ahead, by a thread [1 between hosts or where each rank has a "
                     "core to spare, else 0]"),
        "partition": ("stored", str, "metis, fennel (less memory), random, contiguous, or a file of one part a node; "
                      "stored: as the data stand, else metis"),
        "order": ("stored", ("stored", "none", "metis", "cluster"), "order of a part's nodes in memory: as stored "
                  "with the data if it is, by id, or nodes that share neighbours together, by METIS or by label "
                  "propagation (less memory)"),
        "balance": ("auto", str, "what METIS or Fennel makes even: nodes,edges,train or some of them; auto: as "
                    "stored, else nodes and train, and edges where the degrees are skewed"),
        "memory-limit": (None, byte_size, "memory of each rank, such as 2GiB, above which training does not start "
                         "[what the machine or container has, for all ranks there]"),
        "dry-run": (False, bool, "print what each mode would take, memory and bytes by rank, and train nothing"),
        "numerics": ("fast", NUMERICS, "exact: the same bits on any number of ranks, mode, partition, threads and "
                     "processor"),
        "rows": ("float32", ROWS, "as what rows that edges gather are stored and sent; sums and all else stay float32"),
        "threads": (0, int, "threads of each rank; 0 divides the node's cores"),
        "ranks": (1, int, "ranks as threads of this process, without MPI"),
        "stall-timeout": (300.0, float, "seconds without progress on any rank before the run is ended; 0 never"),
    },
    "files": {
        "run-dir": (None, str, "folder of the run's files [runs/TIME-MODEL]"),
        "checkpoint-every": ("10min", every, "epochs, or time such as 90s, 10min or 2h, between checkpoints; 0 "
                             "writes one at the end"),
        "resume": (None, str, "checkpoint to go on from; data, model and all other options are that run's unless told"),
        "json": (False, bool, "end standard output with one line of JSON"),
        "trace": (None, str, "write a timeline of every rank, which ui.perfetto.dev opens"),
        "trace-epochs": (None, int, "epochs that --trace records, the run's first ones [3]"),
        "tensorboard": (None, str, "folder that each epoch's numbers are written to as well, for TensorBoard"),
        "progress": ("auto", ("auto", "bar", "lines", "none"), "bar, or a line every few seconds [bar on a terminal and in a notebook]"),
        "propagated": (None, str, "of sgc and sign: folder that keeps the propagated features for later runs"),
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
METAVARS = {
    "data": "SPEC", "model": "MODEL", "config": "FILE.toml", "layers": "N", "hidden": "N", "heads": "N",
    "out-heads": "N", "dropout": "SHARE", "input-dropout": "SHARE", "attention-dropout": "SHARE", "epochs": "N", "lr": "RATE",
    "lr-schedule": "SCHEDULE", "weight-decay": "RATE", "seed": "N", "eval-every": "EPOCHS", "prefetch": "PEERS",
    "partition": "METHOD", "balance": "WHAT", "threads": "N", "ranks": "N", "stall-timeout": "SECONDS",
    "run-dir": "DIR", "checkpoint-every": "EPOCHS|TIME", "resume": "FILE", "trace": "FILE.json", "trace-epochs": "EPOCHS",
    "tensorboard": "DIR",
    "batch-size": "SEEDS", "fanouts": "K,K,..", "eval-fanouts": "K,K,..", "hops": "N", "n-bases": "N", "embedding": "N",
    "teleport": "SHARE", "identity-decay": "RATE", "label-inputs": "SHARE", "propagated": "DIR", "correct-alpha": "SHARE",
    "correct-iterations": "N", "correct-scale": "FACTOR", "smooth-alpha": "SHARE", "smooth-iterations": "N",
    "sample-ahead": "N", "hec-lines": "ROWS", "hec-life": "STEPS", "hec-limit": "ROWS", "hec-delay": "STEPS",
    "patience": "EPOCHS", "clip-norm": "NORM", "columns": "C", "memory-limit": "SIZE",
    "readout-width": "N", "link-width": "N", "link-val": "SHARE|FILE", "link-test": "SHARE|FILE",
    "link-split": "TABLE", "edge-labels": "TABLE", "link-relation": "RELATION", "link-disjoint": "SHARE", "negatives": "N",
    "eval-negatives": "N", "negative-sampler": "SAMPLER|FILE", "eval-negative-sampler": "SAMPLER|FILE",
}  # fmt: skip
"""What stands for an option's value in `--help`: the unit, or what the value is."""
