"""Chooses where a graph is cut into regions: within a budget, or without.

Without one, the memory falls as far as one more forward run lets it. Layers
that say themselves whether they run again, or that have parts of their own,
are left out of the cuts: what is before and after them is cut apart.
"""

from keras.src.remat import planner
from keras.src.remat.budget import too_small
from keras.src.remat.planned import Segment
from keras.src.remat.planned import runs_of
from keras.src.remat.planned import shifted
from keras.src.remat.planned import thin_out
from keras.src.remat.units import run_by_themselves
from keras.src.remat.units import stays_out


def chosen(plan):
    """The segments of a `RematPlan`, which together cover all units."""
    every = plan.policy.every
    if not plan.nodes:
        return []
    if plan.budget is not None:
        return thin_out(within_budget(plan), every)
    found, start = [], 0
    for outside, group in runs_of(plan.nodes, stays_out):
        stop = start + len(group)
        if outside:
            found += run_by_themselves(group, start, every)
        else:
            chain = plan.chain_of(plan.costs, start, stop)
            segments = thin_out(smallest(plan, chain), every)
            found += [shifted(s, start) for s in segments]
        start = stop
    return found


def within_budget(plan):
    levels = max(2, plan.policy.levels)
    try:
        return planner.cheapest(plan.chain, plan.budget, levels).segments
    except planner.BudgetError as e:
        raise too_small(e, plan.budget, plan.batch_size) from None


def smallest(plan, chain):
    """All units of a chain run again but for a short end.

    Its backward pass starts at once, so that would save nothing. Nor do units
    run again whose constants take more memory in a region than that saves.
    """
    plain_end = 0 if plan.nested else chain.n // 8
    found = list(planner.least_peak(chain, plan.policy.levels).segments)
    least = chain.peak(found)
    for s in [s for s in found if not s.remat]:
        if s.stop == chain.n and s.stop - s.start <= plain_end:
            continue
        at = found.index(s)
        pairs = chain.borders.divided(s.start, s.stop)
        again = [Segment(a, b, True) for a, b in pairs]
        changed = found[:at] + again + found[at + 1 :]
        has_constants = chain.constants[s.stop] > chain.constants[s.start]
        if not has_constants or chain.peak(changed) <= least:
            found = changed
    return found
