"""Correctness oracle: checks graph kernels, layers and distributed runs of any framework against reference implementations.

    import sarlite.oracle as oracle oracle.check(my_spmm, "spmm", reduce="mean").require()

The oracle needs NumPy, SciPy and threadpoolctl alone. docs/oracle.md explains what each level proves.
"""

from typing import TYPE_CHECKING

from sarlite import lazy

if TYPE_CHECKING:
    from sarlite.oracle.autograd import torch_kernel, torch_layer
    from sarlite.oracle.call import Unsupported
    from sarlite.oracle.case import Case
    from sarlite.oracle.check import check
    from sarlite.oracle.check_report import OracleError, Report
    from sarlite.oracle.definition import Definition, define
    from sarlite.oracle.edge_structure import EdgeList
    from sarlite.oracle.finding import Finding, Verdict
    from sarlite.oracle.layer_state import load_state, state_of
    from sarlite.oracle.part_files import read_results, write_parts
    from sarlite.oracle.parts import RankPart
    from sarlite.oracle.rank_checks import check_ranks, each_rank
    from sarlite.oracle.reference import REFERENCES, Reference
    from sarlite.oracle.replay import replay
    from sarlite.oracle.sarcase import load, save

__all__ = ["REFERENCES", "Case", "Definition", "EdgeList", "Finding", "OracleError", "RankPart", "Reference", "Report",
           "Unsupported", "Verdict", "check", "check_ranks", "define", "each_rank", "load", "load_state",
           "read_results", "replay", "save", "state_of", "torch_kernel", "torch_layer", "write_parts"]

lazy.names(__name__, {
    "Case": "sarlite.oracle.case", "EdgeList": "sarlite.oracle.edge_structure", "Unsupported": "sarlite.oracle.call",
    **dict.fromkeys(("Definition", "define"), "sarlite.oracle.definition"),
    **dict.fromkeys(("torch_kernel", "torch_layer"), "sarlite.oracle.autograd"),
    "check": "sarlite.oracle.check", "replay": "sarlite.oracle.replay",
    **dict.fromkeys(("Reference", "REFERENCES"), "sarlite.oracle.reference"),
    "RankPart": "sarlite.oracle.parts", "Part": "sarlite.oracle.renamed",
    **dict.fromkeys(("check_ranks", "each_rank"), "sarlite.oracle.rank_checks"),
    **dict.fromkeys(("read_results", "write_parts"), "sarlite.oracle.part_files"),
    **dict.fromkeys(("load", "save"), "sarlite.oracle.sarcase"),
    **dict.fromkeys(("load_state", "state_of"), "sarlite.oracle.layer_state"),
    **dict.fromkeys(("Finding", "Verdict"), "sarlite.oracle.finding"),
    **dict.fromkeys(("OracleError", "Report"), "sarlite.oracle.check_report"),
})  # fmt: skip
