"""What a part's graph takes in memory: blocks, ids, transposes; of counts, by the plan that a mode makes of them."""

from sarlite.graph.block import PIECE_EDGES
from sarlite.sar.cost import PartCounts, schedule_of
from sarlite.sar.relations import sets_of


def structure_bytes(counts, mode, transposed=None, turns=False):
    """Return what a part's graph takes, to some per cent: blocks, ids, degrees and scales. Values of edges are data, and not counted here.

    In mode `broadcast` as with prefetch, where there may be more blocks, by which it takes up to 8 bytes a row and block more.

    Parameters
    ----------
    counts : PartCounts, or dict of PartCounts
        Of a relational graph its blocks alone, whose edges, ids and degrees were there before.
    mode : str
    transposed : dict, optional
        As `Program.transposed`.
    turns : bool
        Whether the reversed edges are there too.
    """
    def of(over, counts, plan):
        return _structure(counts, plan, (transposed or {}).get(over, ()))

    if not isinstance(counts, PartCounts):
        return sum(of(chosen, each, schedule_of(each, mode, 1).plan) for chosen, each in counts.items())
    made = schedule_of(counts, mode, 1)
    total = 8 * counts.n_local * 6 + of("edges", counts, made.plan)
    if turns and counts.turned is not None:
        total += of("reverse", counts.turned, made.reverse.plan)
    return total


def _structure(counts, plan, transposed):
    total = 16 * plan.n_halo  # ids and scales of columns; rows that are sent
    total += sum(4 * n for n, contiguous in counts.asked if not contiguous)
    for k, each in enumerate(counts.sets):
        blocks = [(min(each.n_rows[step.source], block.n_edges), block) for step in plan.steps if step.block is not None
                  for block in [sets_of(step.block)[k]]]
        blocks += [(each.n_dst, sets_of(plan.local)[k])] if plan.local is not None else []
        for n_rows, block in blocks:
            dense, itemsize = 3 * n_rows > 2 * each.n_dst, _itemsize(plan, block)  # as `graph.part` decides
            total += itemsize * block.n_edges + (8 * each.n_dst if dense else (8 + itemsize) * n_rows)
        total += _transposed(plan, [block for _, block in blocks], {name for at, name in transposed if at == k})
    return total


def _transposed(plan, blocks, names):
    """What transposes take (`graph.block.TRANSPOSES`), and of the largest what is made besides."""
    total = most = 0
    for block in blocks:
        of_edges, of_columns = _itemsize(plan, block) * block.n_edges, 8 * block.n_src
        n_pieces = -(-block.n_edges // max(PIECE_EDGES, block.n_src))
        total += (of_edges + of_columns) * ("transpose" in names) + of_edges * ("transpose_position" in names)
        total += (of_edges + n_pieces * of_columns) * ("edges_by_column" in names)
        most = max(most, (of_edges + of_columns) * ("transpose_position" in names))
    return total + most


def _itemsize(plan, block):
    return 4 if max(block.n_edges, plan.n_src + plan.n_halo) < 2**31 else 8
