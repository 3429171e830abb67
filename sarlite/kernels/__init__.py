"""The native kernels with checked arguments. `native` is the only module that imports the compiled `sarlite._native`.

Arrays are C-contiguous NumPy arrays. Values are float32 or float64, the same dtype for all value arrays of a call. Rows
that `spmm`, `edge_dot`, `attend` and `attend_backward` gather may also be bfloat16 (`narrow`) if the other values are
float32. `indptr` is int64. `indices`, `eid`, `label`, `arg` and `index` are int32 or int64, the same dtype for all
index arrays of a call. "Accumulates" means `out +=`, "overwrites" means `out =`. Outputs must not overlap inputs. A row
slice of a CSR is `indptr[a : b + 1]` with all of `indices`. The values of `indices`, `rows` and `eid` are not checked,
because a check would cost a pass over the edges; graphs check them once, when they are built. Every call releases the
GIL.

Every function raises a ShapeError that names the argument if a shape, a dtype or a memory layout is wrong. If a
docstring does not list the arguments, the checks at the start of the function do.
"""

from sarlite.kernels.activation import (
    ACTIVATIONS,
    Mask,
    Normal,
    activate,
    activate_backward,
)
from sarlite.kernels.attention import (
    EdgeDropout,
    attend,
    attend_backward,
    attend_backward_finish,
    attend_ends,
    attend_finish,
    row_dot,
)
from sarlite.kernels.bfloat16 import narrow, widen
from sarlite.kernels.buffer_pool import Buffers, outside_buffers
from sarlite.kernels.cache_lines import Lines
from sarlite.kernels.column_moments import column_moments
from sarlite.kernels.gemm import gemm, gemm_backward
from sarlite.kernels.grid_sums import (
    exact_attend,
    exact_attend_backward,
    exact_centred,
    exact_function,
    exact_gemm_backward,
    exact_largest,
    exact_spmm,
    exact_squares,
    exact_whole,
    levels,
)
from sarlite.kernels.integer_rows import dequantize, quantize, round_rows
from sarlite.kernels.native import (
    instruction_set,
    instruction_sets,
    most_threads,
    set_instruction_set,
    set_threads,
    threads,
    wide,
)
from sarlite.kernels.rows import Rows, add, copy_rows, dropout, gather_rows, scatter_add_rows
from sarlite.kernels.sample import SAMPLERS, Numbering, sample
from sarlite.kernels.sparse import (
    edge_dot,
    extremum,
    extremum_backward,
    spmm,
    transpose,
)

__all__ = [
    "Buffers",
    "ACTIVATIONS",
    "EdgeDropout",
    "Lines",
    "Mask",
    "Normal",
    "Numbering",
    "Rows",
    "SAMPLERS",
    "activate",
    "add",
    "activate_backward",
    "attend",
    "attend_backward",
    "attend_backward_finish",
    "attend_ends",
    "attend_finish",
    "column_moments",
    "copy_rows",
    "dequantize",
    "dropout",
    "edge_dot",
    "exact_attend",
    "exact_attend_backward",
    "exact_centred",
    "exact_function",
    "exact_gemm_backward",
    "exact_largest",
    "exact_spmm",
    "exact_squares",
    "exact_whole",
    "extremum",
    "extremum_backward",
    "gather_rows",
    "gemm",
    "gemm_backward",
    "instruction_set",
    "instruction_sets",
    "levels",
    "narrow",
    "quantize",
    "round_rows",
    "row_dot",
    "sample",
    "scatter_add_rows",
    "set_instruction_set",
    "most_threads",
    "set_threads",
    "spmm",
    "threads",
    "transpose",
    "outside_buffers",
    "wide",
    "widen",
]
