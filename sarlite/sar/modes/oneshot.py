"""Vanilla domain-parallel training: one exchange of all rows, one aggregation."""

from sarlite.sar.transport import FetchAll, halo_slices


class OneShot:
    """Fetch every peer's rows at once and visit one block of all edges, whose columns are the local rows, then each peer's."""

    name, keeps, turns, in_step = "oneshot", True, False, False

    def __repr__(self):
        return self.name

    def prepare(self, exchange, prefetch):
        return exchange.merged()

    def run(self, schedule, arrays, visit, phase="forward"):
        """Collective. Holds all peers' rows."""
        plan = schedule.plan
        if not plan.steps:
            return [visit(plan.local, arrays)]
        with FetchAll(schedule.transport, plan, arrays, phase) as fetched:
            return [visit(plan.local, fetched.take_all())]

    def run_backward(self, schedule, arrays, kept, visit, d_arrays, phase="backward"):
        """Collective. The gradients of all rows are computed at once, then each peer's are sent."""
        plan, rows = schedule.plan, None
        if not plan.steps:
            visit(plan.local, arrays, kept and kept[0], d_arrays)
            return
        with schedule.transport.push(d_arrays, len(plan.steps), phase) as push:
            if arrays is not None:
                with FetchAll(schedule.transport, plan, arrays, phase) as fetched:
                    rows = fetched.take_all()
            _, d_rows = push.message(plan.n_src + plan.n_halo)
            visit(plan.local, rows, kept and kept[0], d_rows)
            del rows
            for d, d_all in zip(d_arrays, d_rows):
                if d is not None:
                    d += d_all[: plan.n_src]
            for step, place in zip(plan.steps, halo_slices(plan.n_src, plan.steps)):
                message, views = push.message(step.n_rows, zero=False)
                for view, d_all in zip(views, d_rows):
                    if view is not None:
                        view[...] = d_all[place]
                push.start(step, message)
