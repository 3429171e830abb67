"""The correctness oracle: checks of graph kernels, layers and distributed runs in any framework.

    import sarlite.oracle as oracle
    oracle.check(my_spmm, "spmm", reduce="mean").require()

Needs NumPy, SciPy and the compiled module alone. docs/oracle.md tells what each level proves.
"""

from typing import TYPE_CHECKING

from sarlite import lazy

if TYPE_CHECKING:
    from sarlite.oracle.call import Unsupported
    from sarlite.oracle.case import Case
    from sarlite.oracle.edges import EdgeList
    from sarlite.oracle.report import Finding, OracleError, Report, Verdict
    from sarlite.oracle.state import load_state, state_of

__all__ = ["Case", "EdgeList", "Finding", "OracleError", "Report", "Unsupported", "Verdict", "load_state", "state_of"]

lazy.names(__name__, {
    "Case": "sarlite.oracle.case", "EdgeList": "sarlite.oracle.edges", "Unsupported": "sarlite.oracle.call",
    "Reference": "sarlite.oracle.reference", "REFERENCES": "sarlite.oracle.reference",
    "check": "sarlite.oracle.check", "check_ranks": "sarlite.oracle.ranks", "each_rank": "sarlite.oracle.ranks",
    "load_state": "sarlite.oracle.state", "state_of": "sarlite.oracle.state",
    **dict.fromkeys(("Finding", "OracleError", "Report", "Verdict"), "sarlite.oracle.report"),
})  # fmt: skip
