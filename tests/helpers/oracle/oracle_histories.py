"""Bugs drawn from the histories of kernels before the graphs, widths and values of the corpus were looked at.

Each is a right kernel with one defect. `link` leads to a thread where a defect of this kind was told; the others are
what authors and reviewers of such kernels know. `HISTORIES` has them all; benchmarks/oracle_mutants.py counts which of
them the levels see.
"""

from tests.helpers.oracle.oracle_histories_edges import DRAWN as EDGES
from tests.helpers.oracle.oracle_histories_layers import DRAWN as LAYERS
from tests.helpers.oracle.oracle_histories_sums import DRAWN as SUMS
from tests.helpers.oracle.oracle_histories_values import DRAWN as VALUES

HISTORIES = [*SUMS, *VALUES, *EDGES, *LAYERS]
