"""dtype="bfloat16-rows": kernels over narrow rows are judged by the bounds of their float32 sums.

`oracle_narrow` has the bugs.
"""

from functools import partial

import numpy as np
import pytest

from sarlite import oracle
from sarlite.errors import ConfigError
from sarlite.oracle.arithmetic import BoundArithmetic
from sarlite.oracle.reference import draw
from tests.helpers.oracle import oracle_narrow as narrow
from tests.helpers.oracle.oracle_candidates import graph_run, graph_vjp

GRAPHS = ("empty-0-0", "in-star-16-16", "powers-16-2-32", "doubled-17-64", "uniform-100-130", "in-star-17-8-nan",
          "isolated-12-odd", "isolated-12-odd-ties", "isolated-12-odd-nan", "clique-4-loops")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def passes(run, vjp, op, attributes):
    report = oracle.check(run, op, vjp=vjp, graphs=GRAPHS, **narrow.DTYPE, **attributes).require()
    assert report.checked["certified"] > 5


@pytest.mark.sampled(4)
@pytest.mark.parametrize("op, attributes", narrow.CORRECT)
def test_right_kernels_over_narrow_rows_pass(op, attributes):
    run, vjp = narrow.KERNELS[op]
    passes(run, vjp, op, attributes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op, attributes", [("spmm", {"reduce": "sum"}), ("spmm", {"reduce": "mean"}),
                                            ("spmm", {"reduce": "sym"}), ("spmm", {"reduce": "max"}), ("attention", {})])  # fmt: skip
def test_sarlite_graphs_pass(op, attributes):
    passes(partial(graph_run, row_dtype="bfloat16"), partial(graph_vjp, row_dtype="bfloat16"), op, attributes)


def test_the_bound_of_a_rounded_number_covers_all_roundings():
    arithmetic = BoundArithmetic("float32")
    tie = 1 + 2.0**-8  # 1 and 1 + 2^-7 are as near
    x = arithmetic.from_array(np.float32([1, tie, tie, np.nan, np.inf, 3.4e38]))
    x = x._replace(error=np.array([2.0**-10, 0, 2.0**-20, 0, 0, 0]))
    result = arithmetic.rounded(x, "bfloat16")
    np.testing.assert_array_equal(result.value, [1, 1, 1, np.nan, np.inf, np.inf])
    np.testing.assert_array_equal(result.error[:3], [0, 0, 2.0**-7])


def test_inputs_have_numbers_halfway_between_two():
    drawn = draw(np.random.default_rng(0), (100, 4), "random", "bfloat16-rows")
    halfway = (drawn.view(np.uint32) & 0xFFFF) == 0x8000
    assert 0.15 < halfway.mean() < 0.35


@pytest.mark.parametrize("name, attributes", [("gcn", {}), ("sddmm", {}), ("attention", {"kind": "dot"}),
                                              ("spmm", {"reduce": "max", "weighted": True})])  # fmt: skip
def test_references_without_narrow_rows_are_refused(name, attributes):
    with pytest.raises(ConfigError, match=f"spmm .*'gat', not for {name}"):
        oracle.check(narrow.spmm, name, **narrow.DTYPE, **attributes)
