"""Units that a plan can divide: recurrent layers and rows of blocks.

Such a layer is one unit of a graph, but no region: its second run would make
all its residuals at once. A plan may have it run by its own parts instead,
each of which is a region: blocks, or steps in time. A *way* says what the
unit costs then. Its numbers come from a trace of the call with its regions
(`NodeCost.divided`), so they follow what the engine really keeps.

All parts may be regions, or a share of them: of the steps in time the first
ones, of blocks evenly spread ones. That is less arithmetic, and more memory.

A divided unit is a segment of its own, and in no region.
"""

import collections

import numpy as np

Way = collections.namedtuple("Way", ["saved", "scratch", "flops"])
Way.__doc__ = """A unit whose parts run again, in place of a plain unit.

Args:
    saved: Bytes of residuals.
    scratch: Bytes that are there only while it, or its backward, runs.
    flops: Arithmetic of the second runs.
"""


SHARES = (1.0, 0.75, 0.5, 0.25)


def ways_of(kept, costs):
    """The ways of the nodes of a chain.

    Args:
        kept: A `Kept`, see `profile_kept.py`.
        costs: List of `NodeCost`.

    Returns:
        Dict from the index of a node to a dict from a share to a `Way`.
    """
    saved = kept.by_node()
    return {
        i: {s: way_of(kept, i, saved[i] + cost.beyond, cost, s) for s in SHARES}
        for i, cost in enumerate(costs)
        if cost.divided
    }


def way_of(kept, i, saved, cost, share):
    node = kept.nodes[i]
    divided = cost.divided.get(share, cost.divided[1.0])
    rest = 0 if share in cost.divided else 1 - share
    reads = [node.input_tensors[k] for k in divided.saves_inputs]
    makes = [node.outputs[k] for k in divided.saves_outputs]
    keys = {kept.root(x) for x in (*reads, *makes)}
    # What nobody keeps in a plain run counts here, whoever makes it.
    new = [k for k in keys if k in kept.made and k not in kept.saved]
    less = cost.saved_internal - divided.saved_internal
    less += cost.beyond - divided.beyond
    saved += sum(kept.made[key][1] for key in new) - int((1 - rest) * less)
    scratch = divided.scratch + int(rest * cost.scratch)
    return Way(max(0, saved), scratch, int(share * cost.flops))


def chosen(chain, segment):
    """The `Way` of a segment, or `None` if it is not divided."""
    return chain.ways.get(segment.start, {}).get(segment.divided)


def shares(chain):
    return sorted(set().union(*chain.ways.values()), reverse=True)


def span_of(chain, node, way):
    """What `Chain.span` says of a plain segment, for a divided node."""
    stop = node + 1
    held = chain.held_from(node, chain.unsaved_size)[1]
    keep = way.saved + int(held)
    back = way.saved + chain.passing[node] + chain.grads_after[node]
    back += way.scratch
    first = way.saved + way.scratch
    first += int(chain.constants[-1] - chain.constants[node])
    if stop == chain.n and chain.loss:
        first = max(first, keep + chain.loss)
    need = max(first, int(back))
    return {"keep_plain": keep, "plain": need}


def positions(chain):
    """Where cuts have to be so that the largest nodes can be divided."""
    saved = np.diff(chain.saved_before)
    most = sorted(chain.ways, key=lambda i: -saved[i])[:MOST]
    return sorted({place for i in most for place in (i, i + 1)})


MOST = 16
