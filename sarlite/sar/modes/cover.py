"""Sequential aggregation where a linear message crosses a cut edge as its source's row or within a partial sum, whichever are fewer."""

from sarlite.sar.modes.sequential import Sequential


class Cover(Sequential):
    """Mode `sar`, but for linear messages (`Schedule.cover`).

    Of the edges that are covered by their sources, rows are fetched forward and gradients pushed backward, as in `sar`. Of the others the
    sources' owner sums up its rows for each destination and pushes the sums forward, and fetches the destinations' gradients backward.
    """

    covers = True
