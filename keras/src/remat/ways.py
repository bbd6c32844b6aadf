"""Units that a plan can divide: recurrent layers and rows of blocks.

Such a layer is one unit of a graph, but no region: its second run would make
all its residuals at once. A plan may have it run by its own parts instead,
each of which is a region: blocks, or steps in time. A *way* says what the
unit costs then. Its numbers come from a trace of the call with its regions
(`NodeCost.divided`), so they follow what the engine really keeps.

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


def ways_of(kept, costs):
    """The ways of the nodes of a chain.

    Args:
        kept: A `Kept`, see `profile.py`.
        costs: List of `NodeCost`.

    Returns:
        Dict from the index of a node to its `Way`.
    """
    saved = kept.by_node()
    return {
        i: way_of(kept, i, saved[i], cost)
        for i, cost in enumerate(costs)
        if cost.divided is not None
    }


def way_of(kept, i, saved, cost):
    node, divided = kept.nodes[i], cost.divided
    reads = [node.input_tensors[k] for k in divided.saves_inputs]
    makes = [node.outputs[k] for k in divided.saves_outputs]
    keys = {kept.root(x) for x in (*reads, *makes)}
    # What nobody keeps in a plain run counts here, whoever makes it.
    new = [k for k in keys if k in kept.made and k not in kept.saved]
    saved += divided.saved_internal - cost.saved_internal
    saved += sum(kept.made[key][1] for key in new)
    return Way(max(0, saved), divided.scratch, cost.flops)


def span_of(chain, node):
    """What `Chain.span` says of a plain segment, for a divided node."""
    way, stop = chain.ways[node], node + 1
    held = chain.held_from(node, chain.unsaved_size)[1]
    keep = way.saved + int(held)
    weights = chain.grads_after[node] + chain.copies_before[stop]
    back = way.saved + chain.passing[node] + weights + way.scratch
    first = way.saved + way.scratch
    if stop == chain.n and chain.loss:
        first = max(first, keep + chain.loss)
    need = max(first + chain.copies, int(back))
    return {"keep_plain": keep, "plain": need}


def positions(chain):
    """Where cuts have to be so that the largest nodes can be divided."""
    saved = np.diff(chain.saved_before)
    most = sorted(chain.ways, key=lambda i: -saved[i])[:MOST]
    return sorted({place for i in most for place in (i, i + 1)})


MOST = 16
