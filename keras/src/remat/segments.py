"""Cuts a graph into segments for a policy, once per model and input shapes.

Nodes are taken in the order in which the graph runs. Some stay out of all
regions: those that are switched off, those with a setting of their own, and
nested models with a graph of their own, which are cut by themselves. What lies
between is planned together, see `planner.py`.
"""

import collections

from keras.src import backend
from keras.src import tree
from keras.src.backend import KerasTensor
from keras.src.remat import graph as remat_graph

Segment = collections.namedtuple(
    "Segment",
    ["nodes", "remat", "reads", "writes", "inner", "inherits", "name"],
)
Segment.__doc__ = """Nodes that run as one.

Args:
    nodes: List of `Node`, in order.
    remat: Whether they form a region.
    reads: Ids of tensors that come from before.
    writes: Ids of tensors that are needed after.
    inner: Segments that this one runs as; empty for all nodes at once.
    inherits: Whether a nested model is to follow the policy by itself.
    name: What error messages and tables call it.
"""

CUTS = "_remat_cuts"


def segments_for(function, inputs, policy):
    """The segments of a graph for these inputs, from the cache if possible."""
    key = (tuple(shape_of(x) for x in inputs), policy.key(), settings(function))
    cuts = vars(function).setdefault(CUTS, {})
    if key not in cuts:
        if len(cuts) > 16:  # shapes that never repeat must not pile up
            cuts.clear()
        specs = [spec_of(x) for x in inputs]
        cuts[key] = cut(function, specs, policy)
    return cuts[key]


def shape_of(x):
    if x is None:
        return None
    return tuple(None if d is None else int(d) for d in x.shape)


def spec_of(x):
    if x is None:
        return None
    return KerasTensor(shape_of(x), backend.standardize_dtype(x.dtype))


def settings(function):
    """What the operations of a graph say for themselves."""
    found = []
    for i, op in enumerate(function.operations):
        own, scope = (
            vars(op).get("_remat_setting"),
            vars(op).get("_remat_scope"),
        )
        if own is not None or (scope is not None and scope.mode is None):
            found.append((i, own, scope is None or scope.mode))
    return tuple(found)


def cut(function, specs, policy):
    """Cuts a graph into segments.

    Args:
        function: The `Function`.
        specs: Flat list of `KerasTensor`, its inputs with their real shapes.
        policy: A `RematPolicy`.

    Returns:
        List of `Segment`.
    """
    nodes = ordered_nodes(function)
    parts = []
    for stays_out, group in runs_of(nodes, stays_out_of_regions):
        if stays_out:
            parts += [(list(group), False, (), True)]
        else:
            parts += plan_parts(function, list(group), specs, policy)
    return build(parts, [id(x) for x in function.outputs])


def ordered_nodes(function):
    """The nodes in the order in which `Function` runs them."""
    by_depth = function._nodes_by_depth
    return [
        node
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if node.operation and not node.is_input
    ]


def runs_of(items, key):
    """Groups neighbours of equal key."""
    groups = []
    for item in items:
        k = key(item)
        if not groups or groups[-1][0] != k:
            groups.append((k, []))
        groups[-1][1].append(item)
    return groups


def stays_out_of_regions(node):
    op = node.operation
    own, scope = vars(op).get("_remat_setting"), vars(op).get("_remat_scope")
    if own is not None or (scope is not None and scope.mode is None):
        return True
    nested = remat_graph.graph_of(op)
    return nested is not None and len(ordered_nodes(nested)) > 1


def plan_parts(function, nodes, specs, policy):
    """Divides consecutive nodes as the planner says: (nodes, remat, inner)."""
    from keras.src.remat import plan

    chosen = plan.choose(function, nodes, specs, policy)
    return [part_of(nodes, s) for s in thin_out(chosen, policy.every)]


def part_of(nodes, s):
    inner = tuple(part_of(nodes, i) for i in s.inner)
    return (nodes[s.start : s.stop], s.remat, inner, False)


def thin_out(planned, every):
    """Leaves only each `every`-th region one."""
    if every == 1:
        return planned
    result, count = [], 0
    for s in planned:
        if s.remat:
            keep = count % every == 0
            count += 1
            s = s if keep else s._replace(remat=False, inner=())
        result.append(s)
    return result


def build(parts, needed_after):
    """Makes segments of (nodes, remat, inner, inherits), in order."""
    needed = set(needed_after)
    segments = []
    for nodes, remat, inner, inherits in reversed(parts):
        made = {id(x) for node in nodes for x in node.outputs}
        reads = list(
            dict.fromkeys(
                id(x)
                for node in nodes
                for x in node.input_tensors
                if id(x) not in made
            )
        )
        writes = [key for key in made if key in needed]
        segments.append(
            Segment(
                nodes,
                remat,
                reads,
                writes,
                build(inner, writes) if inner else [],
                inherits,
                name_of(nodes),
            )
        )
        needed.update(reads)
    return segments[::-1]


def name_of(nodes):
    first, last = nodes[0].operation.name, nodes[-1].operation.name
    return first if first == last else f"{first} .. {last}"


def tensors_of(x):
    return [t for t in tree.flatten(x) if isinstance(t, KerasTensor)]
