"""Bugs from the histories of other libraries' kernels, as test cases that were chosen before the oracle's graphs were seen.

Each is a right kernel with one defect. `link` leads to a thread that reports a defect of this kind; the others are
known to authors and reviewers of such kernels. `HISTORIES` lists all; benchmarks/oracle_mutants.py counts which of them
each level sees.
"""

from tests.helpers.oracle.oracle_histories_edges import DRAWN as EDGES
from tests.helpers.oracle.oracle_histories_layers import DRAWN as LAYERS
from tests.helpers.oracle.oracle_histories_sums import DRAWN as SUMS
from tests.helpers.oracle.oracle_histories_values import DRAWN as VALUES

HISTORIES = [*SUMS, *VALUES, *EDGES, *LAYERS]
