"""A wrong argument is reported by its name and value; objects have a helpful repr."""

import numpy as np
import pytest

from sarlite import Graph, Tensor, Trainer, fn, nn, optim
from sarlite.comm import Solo, threads
from sarlite.errors import ConfigError, DataError, SarliteError, ShapeError
from sarlite.minibatch import message_flow
from sarlite.minibatch.batch import FullBatch
from sarlite.models import GAT, GCN, RGCN, SAGE, SIGN, GATConv, GATv2Conv
from sarlite.progress import Progress
from sarlite.tape import ops
from sarlite.tasks.node_task import NodeTask
from sarlite.tasks.shown_labels import LabelInputs
from sarlite.train.epochs import fit
from sarlite.train.step import TrainingStep
from sarlite.train.stopping import Stopping

GRAPH = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], 4)
X = np.ones((4, 3), np.float32)
WITH_NAN = np.array([[1, 1, 1]] * 3 + [[1, 1, np.nan]], np.float32)
LABELS = np.array([0, 1, 0, 1])
Z, SCORES = Tensor(np.ones((4, 2, 3), np.float32)), Tensor(np.ones((4, 2), np.float32))
WEIGHT = nn.Parameter(np.ones((3, 2), np.float32))


def rng():
    return nn.Random(0)


def adam(flat):
    return optim.Adam(flat, 0.01)


LAYERS = {
    "n_in is -3, but must be 0 or more": lambda: nn.Linear(-3, 2, rng=rng()),
    "n_in is 3.0, but must be a whole number": lambda: nn.Linear(3.0, 2, rng=rng()),
    "dtype is int64, but parameters are float32 or float64": lambda: nn.Linear(3, 2, rng=rng(), dtype=int),
    "rng is a Generator, but must be an nn.Random": lambda: nn.Linear(3, 2, rng=np.random.default_rng()),
    "dropout's p is 1.5": lambda: nn.Dropout(1.5, rng()),
    "dropout's p is 'a'": lambda: nn.Dropout("a", rng()),
    "seed is 'a', but must be a whole number": lambda: nn.Random("a"),
    "ids are float64 (4,), but must be one integer for each row": lambda: nn.Embedding(np.arange(4.0), 2, rng=rng()),
    "rows[0] is 5, but rows are 0 .. 3": lambda: nn.Embedding(np.arange(4), 2, rng=rng())([5]),
    "rows: bool (3,) is neither 4 bools": lambda: nn.Embedding(np.arange(4), 2, rng=rng())(np.ones(3, bool)),
    "Linear: x has shape (4, 3), but must have shape (..., 5)": lambda: nn.Linear(5, 2, rng=rng())(Tensor(X)),
    "Linear: x is float64, but its parameters are float32": lambda: nn.Linear(3, 2, rng=rng())(Tensor(X.astype(float))),
    "LayerNorm: x has shape (4, 3), but must have shape (..., 5)": lambda: nn.LayerNorm(5)(Tensor(X)),
    "BatchNorm: x is float64, but its parameters are float32": lambda: nn.BatchNorm(3)(Tensor(X.astype(float)), GRAPH.comm),
    "BatchNorm: comm is a Graph": lambda: nn.BatchNorm(3)(Tensor(X), GRAPH),
    "Activation: x has shape (4, 3), but must have shape (n, 5)": lambda: nn.Activation(5, rng=rng())(Tensor(X), GRAPH),
    "layers is 0, but must be 1 or more": lambda: GCN(3, 2, layers=0, rng=rng()),
    "hidden is 0, but must be 1 or more": lambda: SAGE(3, 2, hidden=0, rng=rng()),
    "heads is 0, but must be 1 or more": lambda: GAT(3, 2, heads=0, rng=rng()),
    "lr is 'a', but must be in": lambda: optim.Adam(nn.flatten(nn.Linear(3, 2, rng=rng())), "a"),
    "lr is 0, but must be in (0, inf)": lambda: optim.SGD(nn.flatten(nn.Linear(3, 2, rng=rng())), 0),
    "every of steps is 0, but must be 1 or more": lambda: optim.steps(0, 0.5),
    "factor of steps is inf, but must be in (0, inf)": lambda: optim.steps(3, np.inf),
    "epochs of warmup is 0, but must be 1 or more": lambda: optim.warmup(0, optim.constant()),
    "epochs of cosine is 2.5, but must be a whole number": lambda: optim.cosine(2.5),
    "schedule 'step:0:0.5': every of steps is 0": lambda: optim.schedule("step:0:0.5", 9),
    "betas are (0.9,), but must be two numbers": lambda: optim.Adam(nn.flatten(nn.Linear(3, 2, rng=rng())), betas=(0.9,)),
    "nodes is a Graph, but must be a node type of a HeteroGraph": lambda: RGCN({"a": 3}, 2, GRAPH, rng=rng()),
    "kind 'none at all' is not one of auto, bar, lines, none": lambda: Progress("none at all"),
    "label_inputs is 0.5, but must be LabelInputs": lambda: NodeTask(label_inputs=0.5),
    "label_inputs need labels that are classes, but the task is regress": lambda: NodeTask("regress", label_inputs=LabelInputs(0.5, 2)),
    "patience is 0, but must be 1 or more": lambda: Stopping(0),
    "n_heads is 0, but must be 1 or more": lambda: GATConv(3, 2, 0, rng=rng()),
    "n_feat is 0, but must be 1 or more": lambda: GATv2Conv(3, 0, 2, rng=rng()),
    "clip_norm is -1, but must be in (0, inf)": lambda: TrainingStep(None, None, rng(), Solo(), clip_norm=-1),
    "comm is a NoneType, but must be a communicator": lambda: GRAPH.shard(None, "metis"),
    "message is a Tensor, but must say what travels along an edge: fn.copy_src(x)": lambda: GRAPH.aggregate(Tensor(X), "sum"),
    "message is a ndarray": lambda: GRAPH.aggregate(X, "max"),
    "schedule 'cosin' is not one of constant, cosine, step:EVERY:FACTOR, plateau:FACTOR:PATIENCE, warmup:EPOCHS:REST; did you mean cosine?":
        lambda: optim.schedule("cosin", 3),
    "flat is a Linear, but must be": lambda: optim.Adam(nn.Linear(3, 2, rng=rng())),
    "the model is a function, but must be an nn.Module": lambda: nn.flatten(adam),
}
MESSAGES = {
    "fn.linear: x has shape (3, 3), but needs 4 rows, one each source row": lambda: fn.linear(Tensor(X[:3]), WEIGHT),
    "fn.linear: x is float64, weight is float32": lambda: fn.linear(Tensor(X.astype(float)), WEIGHT),
    "fn.linear: x (4, 2) and weight (3, 2)": lambda: fn.linear(Tensor(X[:, :2].copy()), WEIGHT),
    "fn.copy_src: x has shape ()": lambda: fn.copy_src(None),
    "x must have dtype float32 or float64; got shape (4, 3), dtype int64": lambda: fn.copy_src(X.astype(int)),
    "fn.mul_edge: weight has shape (3,), but needs 4 rows, one each edge": lambda: fn.mul_edge(Tensor(X), np.ones(3, np.float32)),
    "fn.mul_edge: x is float32, weight is float64": lambda: fn.mul_edge(Tensor(X), np.ones(4)),
    "fn.mul_edge: weight (4, 4) does not go with x (4, 2, 3): one number for each edge, or for each edge and head of x":
        lambda: fn.mul_edge(Z, np.ones((4, 4), np.float32)),
    "fn.mul_edge: weight (4, 3, 1) does not go with x (4, 3)":
        lambda: fn.mul_edge(Tensor(X), np.ones((4, 3, 1), np.float32)),
    "fn.attend: z (4, 2, 3), src (4, 2) and dst (4, 3) are not": lambda: fn.attend(Z, SCORES, Tensor(X)),
    "fn.attend: z (4, 3), src (4, 2)": lambda: fn.attend(Tensor(X), SCORES, SCORES),
    "fn.attend: z is float32, src is float32, dst is float64": lambda: fn.attend(Z, SCORES, Tensor(np.ones((4, 2)))),
    "fn.attend: dst has shape (3, 2), but needs 4 rows, one each destination row": lambda: fn.attend(Z, SCORES, Tensor(np.ones((3, 2)))),
}


@pytest.mark.parametrize("message", LAYERS)
def test_layers_name_the_argument(message):
    with pytest.raises(SarliteError) as caught:
        LAYERS[message]()
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_name_the_argument(message):
    with pytest.raises(ShapeError) as caught:
        GRAPH.aggregate(MESSAGES[message](), "sum")
    assert message in str(caught.value)


UNUSED = {
    "fn.attend: attn_edge is given, but edge is None": lambda: fn.attend(Z, SCORES, SCORES, attn_edge=WEIGHT),
    "fn.attend: edge is given, but attn_edge is None":
        lambda: fn.attend(Z, SCORES, SCORES, edge=np.ones((4, 3), np.float32)),
    **{"src, dst and edge are inputs of a function, but the message CopySrc has its own" + " " * k:
       lambda place=place: GRAPH.aggregate(fn.copy_src(X), "sum", **{place: {"x": np.ones(17)}})
       for k, place in enumerate(("src", "dst", "edge"))},
    "src, dst and edge are inputs of a function, but the message Message has its own":
        lambda: GRAPH.aggregate(fn.message(lambda s, d, e: s["x"], {"x": X}), "sum", dst={"y": X}),
}


@pytest.mark.parametrize("message", UNUSED)
def test_what_a_message_would_not_use_is_refused(message):
    with pytest.raises(ConfigError, match=message.strip()):
        UNUSED[message]()


class Made(nn.Module):
    def __init__(self, change=lambda h: h, n_out=2):
        self.linear, self.change = nn.Linear(3, n_out, rng=rng()), change

    def __call__(self, graph, h):
        return self.change(self.linear(h))


class Bare(nn.Module):
    def __call__(self, graph, h):
        return h


TRAINERS = {
    "graph is a int, but must be a Graph": {"graph": 3},
    "rng is a Generator": {"rng": np.random.default_rng()},
    "x is object, but features must be numbers": {"x": [None] * 4},
    "fn.linear: x is float64, weight is float32": {"x": X.astype(float)},
    "x must have dtype float32 or float64; got shape (4, 3), dtype int64": {"x": X.astype(int)},
    "x[3, 2] is nan: features must be finite": {"x": WITH_NAN},
    "train: 4 integers 0 and 1 would select rows 0 and 1 repeatedly; convert a mask with .astype(bool)": {"train": np.array([0, 1, 1, 0])},
    "model is a object that cannot be called: a model defines __call__(self, graph, h)": {"model": object()},
    "labels are float64, but classes are integers": {"labels": LABELS * 1.0},
    "labels are <U21, but classes are integers from 0: use np.unique": {"labels": LABELS.astype(str)},
    "labels have shape (4, 1), but classes have shape (4,)": {"labels": LABELS[:, None]},
    "labels[1], of the train split, is -1": {"labels": LABELS - 2 * (np.arange(4) == 1)},
    "labels[2], of the val split, is -1": {"labels": LABELS - (np.arange(4) == 2)},
    "the model GCN returned shape (4, 2), but labels go up to 2: it needs 3 columns": {"labels": np.array([0, 1, 0, 2]), "val": [3]},
    "train: bool (5,) is neither 4 bools": {"train": np.ones(5, bool)},
    "train: float64 (4,)": {"train": np.ones(4)},
    "val[0] is -1": {"val": [-1]},
    "test: object ()": {"test": None},
    "the training split is empty": {"train": []},
    "optimizer is 0.01, but must be a function": {"optimizer": 0.01},
    "optimizer returned a NoneType": {"optimizer": lambda flat: None},
    "schedule is 'cosine', but must be a function": {"schedule": "cosine"},
    "loss is 'mse', but must be a function": {"loss": "mse"},
    "the loss returned a NoneType, but must return a Tensor of one value": {"loss": lambda output, labels: None},
    "the loss returned a Tensor of shape (2, 2)": {"loss": lambda output, labels: output},
    "the model Bare has no parameters": {"model": Bare()},
    "the model Made returned a ndarray, but must return a Tensor": {"model": Made(lambda h: h.numpy())},
    "the model Made returned a NoneType": {"model": Made(lambda h: None)},
    "the model Made returned shape (2, 2), but the graph has 4 destination rows": {"model": Made(lambda h: h[:2])},
    "the model Made returned shape (4,), but labels go up to 1: it needs 2 columns": {"model": Made(lambda h: h.sum(1))},
    "the output of the model Made does not depend on its parameters": {"model": Made(lambda h: h.detach())},
    "x has shape (4, 3), but the model GCN takes 5 features": {"model": GCN(5, 2, rng=rng())},
    "x has shape (4, 3), but the model SIGN takes 9 features": {"model": SIGN(3, 2, hops=2, rng=rng())},
    "clip_norm is 0, but must be in (0, inf)": {"clip_norm": 0},
    "clip_norm is inf": {"clip_norm": np.inf}, "clip_norm is nan": {"clip_norm": np.nan},
    "task is 'regress', but must be a Task": {"task": "regress"},
    "loss and task are both given": {"task": NodeTask(), "loss": ops.mse},
    "metric roc-auc needs several labels or 2 classes, but there are 3 classes":
        {"task": NodeTask(metric="roc-auc"), "labels": np.array([0, 1, 2, 2]), "train": [0, 1, 2], "model": GCN(3, 3, rng=rng())},
    "metric roc-auc needs several labels or 2 classes, but the output has 3 columns":
        {"task": NodeTask(metric="roc-auc"), "model": GCN(3, 3, rng=rng())},
    "label inputs: the share is 1.5, but must be in (0, 1)": {"task": NodeTask(label_inputs=LabelInputs(1.5, 2))},
    "label inputs: n_classes is 0": {"task": NodeTask(label_inputs=LabelInputs(0.5, 0))},
    "label_inputs: the model has powers": {"task": NodeTask(label_inputs=LabelInputs(0.5, 2)), "model": SIGN(3, 2, hops=1, rng=rng())},
    "batches is a list, but must be a loader or a Batch": {"batches": [1, 2]},
    "batches is a Batch without rows on any rank": {"batches": message_flow(GRAPH, [], 2, X, LABELS)},
    "scoring is a int, but must be a loader or a Batch": {"scoring": 3},
}


def trainer(graph=GRAPH, model=None, x=X, labels=LABELS, train=(0, 1), **options):
    defaults = {"optimizer": adam, "rng": rng(), "val": [2], **options}
    return Trainer(graph, model or GCN(3, 2, rng=rng()), x, labels, train, **defaults)


@pytest.mark.parametrize("message", TRAINERS)
def test_a_trainer_names_the_argument(message):
    with pytest.raises(SarliteError) as caught:
        new_trainer = trainer(**TRAINERS[message])
        new_trainer.step()
        new_trainer.evaluate()
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("message, options", [
    ("eval_every is 0, but must be 1 or more", {"eval_every": 0}), ("epochs is 2.5, but must be a whole number", {"epochs": 2.5}),
    ("start is -1, but must be 0 or more", {"start": -1}),
])  # fmt: skip
def test_fit_names_the_argument(message, options):
    with pytest.raises(ConfigError) as caught:
        fit(trainer(), **{"epochs": 2, **options})
    assert str(caught.value) == message


@pytest.mark.filterwarnings("error")
def test_a_learning_rate_that_is_far_too_large_is_told_once():
    with pytest.raises(DataError, match="loss is nan at step 2: .*learning rate"):
        diverging = trainer(optimizer=lambda flat: optim.Adam(flat, 1e38))
        diverging.step()
        diverging.step()


def test_predictions_of_a_model_that_is_too_narrow_are_refused():
    with pytest.raises(ShapeError, match="it needs 3 columns"):
        trainer(labels=np.array([0, 1, 2, 1])).predict()


def test_other_rows_may_have_any_label():
    assert trainer(labels=np.array([0, 1, 1, -7])).step() > 0


# ---- rows, everywhere


@pytest.mark.parametrize("rows", [np.array([False, True, False, True]), slice(1, None, 2), [1, 3], range(1, 4, 2),
                                  np.array([1, 3], np.uint8), np.arange(4)[1::2]])  # fmt: skip
def test_rows_are_a_mask_a_slice_or_numbers(rows):
    x, targets = Tensor(np.arange(8.0).reshape(4, 2)), np.arange(8.0).reshape(4, 2) / 9
    assert ops.cross_entropy(x, LABELS, rows).item() == ops.cross_entropy(x, LABELS, np.array([1, 3])).item()
    assert ops.nll(x, LABELS, rows).item() == ops.nll(x, LABELS, np.array([1, 3])).item()
    for loss in (ops.mse, ops.bce_with_logits):
        assert loss(x, targets, rows).item() == loss(x, targets, np.array([1, 3])).item()
    table = nn.Embedding(np.arange(4), 2, rng=rng())
    np.testing.assert_array_equal(table(rows).numpy(), table.weight.numpy()[[1, 3]])
    losses = []
    for chosen in (rows, np.array([1, 3])):
        random = rng()
        model = GCN(3, 2, rng=random)
        losses.append(TrainingStep(model, adam(nn.flatten(model)), random, Solo())(FullBatch(GRAPH, Tensor(X), LABELS, chosen, 2)))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("rows, error", [(np.ones(3, bool), ShapeError), ([True], ShapeError), (np.ones(4), ShapeError), ([4], DataError),
                                         ([-1], DataError), ("a", ShapeError), (2, ShapeError), (slice(0.5), ShapeError)])  # fmt: skip
def test_what_is_neither_is_refused_by_losses(rows, error):
    x = Tensor(np.zeros((4, 2)))
    values = np.zeros((4, 2))
    for loss, targets in ((ops.cross_entropy, LABELS), (ops.nll, LABELS), (ops.mse, values), (ops.bce_with_logits, values)):
        with pytest.raises(error, match="rows"):
            loss(x, targets, rows)


@pytest.mark.parametrize("wrong, message", [
    ({"rows": np.ones(7, bool)}, r"rows: bool \(7,\)"), ({"rows": [9]}, r"rows\[0\] is 9"), ({"labels": LABELS + 5}, "labels"),
    ({"loss": lambda *arguments: 1 / 0}, "division by zero"), ({"x": X * np.nan}, r"x\[0, 0\] is nan"),
])  # fmt: skip
def test_a_step_that_is_wrong_on_one_rank_is_refused_on_all_and_changes_nothing(wrong, message):
    whole = Graph.from_edges(np.arange(8), np.roll(np.arange(8), 1), 8)

    def work(comm):
        part, random = whole.shard(comm, np.arange(8) // 4), rng()
        model = GCN(3, 2, rng=random)
        step = TrainingStep(model, adam(nn.flatten(model)), random, comm)
        before, arguments = model.state_dict(), {"x": X, "labels": LABELS, "rows": [0, 2], "loss": ops.cross_entropy}
        here = {**arguments, **(wrong if comm.rank else {})}
        with pytest.raises((SarliteError, ZeroDivisionError), match=message):
            step(FullBatch(part, Tensor(here["x"]), here["labels"], here["rows"], 4), here["loss"])
        for name, array in model.state_dict().items():
            np.testing.assert_array_equal(array, before[name])
        return step(FullBatch(part, Tensor(X), LABELS, [0, 2], 4)) > 0  # training continues

    assert threads.run(2, work) == [True, True]


# ---- repr


def test_layers_say_their_sizes():
    assert repr(nn.Linear(3, 2, rng=rng())) == "Linear(3, 2)"
    assert repr(nn.Linear(3, 2, bias=False, rng=rng(), dtype=np.float64)) == "Linear(3, 2, bias=False, float64)"
    assert repr(nn.Embedding(np.arange(4), 2, rng=rng())) == "Embedding(4 rows of 2)"
    assert repr(nn.Dropout(0.5, rng())) == "Dropout(p=0.5)"
    assert repr(nn.Activation(3, "elu", batch_norm=True, dropout=0.25, rng=rng())) == "Activation(3, elu, batch norm, dropout 0.25)"
    assert repr(nn.LayerNorm(3)) == "LayerNorm(3)" and repr(nn.BatchNorm(3)) == "BatchNorm(3)"
    assert repr(GCN(3, 2, hidden=4, rng=rng())).splitlines() == [
        "GCN(", "  convs.0: GCNConv(", "    linear: Linear(3, 4, bias=False))", "  convs.1: GCNConv(bias (2,)",
        "    linear: Linear(4, 2, bias=False))", "  input_dropout: Dropout(p=0.5)",
        "  activations.0: Activation(4, relu, bias, dropout 0.5))",
    ]  # fmt: skip


def test_the_others_do_too():
    assert repr(GRAPH) == "Graph(n_src=4, n_dst=4, n_edges=4)"
    new_trainer = trainer(test=[3])
    assert repr(new_trainer.flat) == "Flat(98 replicated values of 4 parameters)"
    assert repr(new_trainer.optimizer) == "Adam(lr=0.01, betas=(0.9, 0.999), step 0; Flat(98 replicated values of 4 parameters))"
    assert repr(optim.SGD(new_trainer.flat, 0.1, 0.9, 5e-4)).startswith("SGD(lr=0.1, momentum=0.9, weight_decay=0.0005; Flat(")
    assert "weight_decay=0 or 0.5" in repr(optim.SGD(new_trainer.flat, 0.1, weight_decay=lambda name: 0.5 * name.startswith("convs.0")))
    new_trainer.step()
    assert repr(new_trainer).startswith("Trainer(GCN of 98 values, Graph(n_src=4, n_dst=4, n_edges=4), x float32 (4, 3), "
                                        "rows of all ranks: 2 train, 1 val, 1 test; Adam(") and repr(new_trainer).endswith("step 1)")
    assert repr(nn.Random(3)) == "Random(seed=3, step=0, 0 layers)"
    table = nn.flatten(nn.Embedding(np.arange(4), 2, rng=rng()))
    assert repr(table) == "Flat(0 replicated values of 0 parameters, weight (4, 2))"


def test_tensors_do_too():
    shown = repr(Tensor(np.zeros((1000, 3), np.float32)))
    assert shown.startswith("Tensor([[0., 0., 0.],") and shown.endswith("shape=(1000, 3), dtype=float32, requires_grad=False)")
    assert len(shown) < 200
    assert repr(nn.Parameter(np.ones(2))) == "Parameter([1., 1.], shape=(2,), dtype=float64, requires_grad=True)"
    assert repr(Tensor(np.float64(2))) == "Tensor(2., shape=(), dtype=float64, requires_grad=False)"


def test_errors_of_arguments_are_value_errors_too():
    assert issubclass(ConfigError, ValueError) and issubclass(ShapeError, ValueError)
