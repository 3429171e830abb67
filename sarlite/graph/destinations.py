"""Function that takes the rows of a layer's destination nodes from the layer's source rows, where the destinations come first."""

from sarlite.tape import Tensor, apply
from sarlite.tape.table_rows import TableRows


def destinations(h: Tensor, n: int) -> Tensor:
    """Return the first n rows of h, a layer's destinations. Rows of a feature table (a `TableRows` without gradient) are not copied."""
    if isinstance(h, TableRows) and not h.requires_grad:
        return h.first(n)
    return apply("getitem", h, index=slice(0, n))
