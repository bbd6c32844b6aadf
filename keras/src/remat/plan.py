"""Chooses a plan for consecutive nodes of a graph."""

from keras.src.backend.common import global_state
from keras.src.remat import costs
from keras.src.remat import planner
from keras.src.remat.chain import Segment


def choose(function, nodes, specs, policy):
    """Chooses segments for consecutive nodes.

    Without a budget that is the plan of least peak, in which every node
    belongs to a region. Only a short end may stay plain: its backward pass
    starts at once, so running it again would save nothing.
    """
    chain = costs.chain(function, nodes, specs)
    chosen = planner.least_peak(chain, policy.levels).segments
    nested = global_state.get_global_attribute("remat_inherited") is not None
    plain_end = 0 if nested else len(nodes) // 8
    return [
        s
        if s.remat or (s.stop == chain.n and s.stop - s.start <= plain_end)
        else Segment(s.start, s.stop, True)
        for s in chosen
    ]
