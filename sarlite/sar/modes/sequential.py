"""Sequential aggregation, with rematerialization (`sar`) or without (`sa`): one peer's rows at a time (SAR algorithms 1 and 2)."""


class Sequential:
    """Fetch a peer's rows, visit its block, free them; the local block first, backward last.

    Attributes
    ----------
    name : str
    keeps : bool
        Whether what each block's gradient needs is kept (`sa`); else rows are fetched again (`sar`).
    """

    turns = in_step = False

    def __init__(self, name, keeps):
        self.name, self.keeps = name, keeps

    def __repr__(self):
        return self.name

    def prepare(self, exchange, prefetch):
        return exchange.separate()

    def run(self, schedule, arrays, visit, phase="forward"):
        """SAR algorithm 1. Collective. Holds at most 1 + prefetch peers' rows, but for what `visit` returns."""
        plan = schedule.plan
        with schedule.transport.fetch(plan.steps, arrays, phase) as fetched:
            found = [visit(plan.local, arrays)]
            for step in plan.steps:
                found.append(visit(step.block, fetched.take(step)))
                fetched.release()
        return found

    def run_backward(self, schedule, arrays, kept, visit, d_arrays, phase="backward"):
        """SAR algorithm 2. Collective.

        The local block comes last, so that the last gradients travel meanwhile. In case 2 with prefetch one half of its rows comes
        first, so that the first rows travel meanwhile too. Where nothing was kept, steps are parts of a peer's columns
        (`Plan.backward_steps`): at most prefetch peers' rows and a part of another's are held.
        """
        plan, transport = schedule.plan, schedule.transport
        steps = plan.steps if kept else plan.backward_steps
        ahead = transport.prefetch if steps else 0
        *first, last = plan.local.halves if ahead and arrays is not None else (plan.local,)
        local, *remote = kept or [None] * (1 + len(steps))
        with (transport.push(d_arrays, ahead and steps[0].share.denominator, phase) as push,
              transport.fetch(steps, arrays, phase) as fetched):
            for block in first:
                visit(block, arrays, local, d_arrays)
            for step, value in zip(steps, remote):
                message, d_rows = push.message(step.n_rows)
                visit(step.block, fetched.take(step), value, d_rows)
                fetched.release()
                push.start(step, message)
                del message, d_rows
            visit(last, arrays, local, d_arrays)
