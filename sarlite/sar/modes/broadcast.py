"""Staged broadcast (MG-GCN 4.1 to 4.3): at stage j rank j broadcasts its rows, and everybody multiplies its tile with them."""

from fractions import Fraction

from sarlite.sar.modes.sequential import Sequential
from sarlite.sar.stages import Stage, Stages, StagesAhead


class Broadcast(Sequential):
    """All ranks take the stages in the order of ranks. A rank visits its own tile in the stage in which its rows are sent, when all others
    have a tile too; with prefetch first, which hides the first broadcast.

    With prefetch, where the tiles are dense, a stage comes in pieces (`Exchange.n_pieces`): ranges of the root's rows, each with a tile of
    its own, so that what is computed after the last transfer is a piece of a tile.

    Backward a linear message's gradient is the same over the reversed edges (`Schedule.reverse`): the destinations' gradients are
    broadcast, and nothing is pushed. Other messages' goes by the peers' rows that are needed, as in mode `sar`.
    """

    turns = in_step = True

    def prepare(self, exchange, prefetch):
        n, stages = exchange.n_pieces if prefetch else 1, []
        plan = exchange.separate(n)
        for root in range(exchange.size):
            blocks = [step.block for step in plan.steps if step.source == root] or [None] * n
            stages += [Stage(root, block, *ranges, Fraction(1, n)) for block, ranges in zip(blocks, exchange.ranges(root, n))]
        return plan._replace(stages=tuple(stages))

    def run(self, schedule, arrays, visit, phase="forward"):
        """Collective. Holds at most 1 + prefetch peers' rows, in pieces one piece and prefetch peers', but for what `visit` returns."""
        plan = schedule.plan
        if not plan.steps:
            return [visit(plan.local, arrays)]
        transport, before, after = schedule.transport, [], []
        ahead, local = transport.prefetch, None
        with transport.chosen(Stages, StagesAhead)(transport, plan.stages, arrays, phase) as stages:
            if ahead:
                local = visit(plan.local, arrays)
            for stage in plan.stages:
                rows = stages.take(stage)
                if stage.block is not None:
                    (before if stage.root < transport.comm.rank else after).append(visit(stage.block, rows))
                    del rows
                elif not ahead:
                    local = visit(plan.local, arrays)
                stages.release(stage)
        return [local, *after, *before]
