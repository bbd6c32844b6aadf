"""The segments of a graph for a policy, once per model and input shapes."""

import bisect
import collections
import warnings

from keras.src.backend.common import global_state
from keras.src.remat import plan as remat_plan
from keras.src.remat.inherited import decides_itself
from keras.src.remat.planner import BudgetError
from keras.src.remat.specs import batch_size
from keras.src.remat.specs import filled_in
from keras.src.remat.specs import has_unknown
from keras.src.remat.specs import shape_of
from keras.src.remat.structure import graph_of

Segment = collections.namedtuple(
    "Segment",
    [
        "nodes",
        "remat",
        "reads",
        "writes",
        "inner",
        "divided",
        "name",
        "drops",
        "graph",
        "inside",
        "keep",
    ],
)
Segment.__doc__ = """Nodes that run as one.

Args:
    nodes: List of `Node`, in order.
    remat: Whether they form a region.
    reads: Ids of tensors that come from before.
    writes: Ids of tensors that are needed after.
    inner: Segments that this one runs as; empty for all nodes at once.
    divided: Share of the parts of its only node that are regions.
    name: What error messages and tables call it.
    drops: For each node, ids of the tensors that nothing reads after it.
    graph: The graph of the only node, a model, if a plan divides it; else
        `None`.
    inside: The segments that this graph runs as.
    keep: What a region keeps, where that is not what the policy says.
"""

Part = collections.namedtuple(
    "Part",
    ["nodes", "remat", "inner", "divided", "graph", "inside", "keep"],
    defaults=[None, (), None],
)
Part.__doc__ = "A `Segment` before it is known what is read and needed."

CUTS = "_remat_cuts"
LAST = "_remat_last_specs"
ALLOWED = "_remat_allowed"


def segments_for(function, inputs, policy, training=True):
    """The segments of a graph for these inputs, from the cache if possible."""
    nested = global_state.get_global_attribute("remat_inherited") is not None
    shapes = tuple(shape_of(x) for x in inputs)
    known = batch_size() if (None,) in [s and s[:1] for s in shapes] else None
    own = settings(function)
    key = (shapes, known, policy.key(), own, nested)
    key += (training,) if policy.memory_budget else ()
    cuts = vars(function).setdefault(CUTS, {})
    if not nested and (training or LAST not in vars(function)):
        vars(function)[LAST] = [filled_in(x) for x in inputs]
    if key not in cuts:
        if len(cuts) > 16:  # shapes that never repeat must not pile up
            cuts.clear()
        specs = [filled_in(x) for x in inputs]
        plan = plan_for(function, specs, policy, nested, training=training)
        plan.guessed = has_unknown(inputs)
        remat_plan.log(plan)
        cuts[key] = segments_of(plan)
    return cuts[key]


def plan_for(function, specs, policy, *given, training):
    """The plan of a call, for which a share as its budget may be too small.

    Weights rule the peak of a small batch, such as the last one of an epoch,
    so it may take as much as a larger batch before it. Outside of training
    nobody knows whether a gradient will be taken, so the call runs in the
    least memory.
    """

    def plan(budget):
        asked = policy.replaced(memory_budget=budget)
        return remat_plan.RematPlan(function, specs, asked, *given)

    allowed = vars(function).setdefault(ALLOWED, {})
    most = allowed.get(policy.key(), 0)
    try:
        found = plan(policy.memory_budget)
    except ValueError as e:
        error = e.__context__
        if not isinstance(error, BudgetError):
            raise
        if training and error.floor > most:
            raise
        if training:
            return plan(most)
        warnings.warn(
            f"This call runs in the least memory, as it is no training: {e}"
        )
        return plan(None)
    allowed[policy.key()] = max(most, found.budget or 0)
    return found


def segments_of(plan):
    """A plan's segments in the form in which a graph runs."""
    chosen = plan.segments
    parts = parts_of(plan.units, plan.units.level.items, chosen)
    return build(parts, [id(x) for x in plan.function.outputs])


def parts_of(units, items, segments):
    """Groups the nodes of one graph as the segments of all units want it.

    A model that several segments share becomes a part of its own, which
    has parts inside.
    """
    parts = []
    for s, group in grouped(items, segments):
        nodes = [item.node for item in group]
        if s is None:
            level = group[0].level
            inside = parts_of(units, level.items, segments)
            parts.append(Part(nodes, False, (), False, level.function, inside))
            continue
        inner = parts_of(units, group, s.inner) if s.inner else ()
        parts.append(Part(nodes, s.remat, inner, s.divided, keep=s.keep))
    return parts


def grouped(items, segments):
    """Pairs of a segment and the items in it; of `None` and one in several."""
    starts = [s.start for s in segments]
    groups = []
    for item in items:
        s = segments[bisect.bisect_right(starts, item.start) - 1]
        s = s if item.stop <= s.stop else None
        if s is None or not groups or groups[-1][0] is not s:
            groups.append((s, []))
        groups[-1][1].append(item)
    return groups


def settings(function):
    """What the operations of a graph, and of those in it, say themselves."""
    found = []
    for i, op in enumerate(all_operations(function)):
        if decides_itself(op):
            own = vars(op).get("_remat_setting")
            scope = vars(op).get("_remat_scope")
            found.append((i, own, scope is None or scope.mode))
    return tuple(found)


def all_operations(function):
    for op in function.operations:
        yield op
        inside = graph_of(op)
        if inside is not None and inside is not function:
            yield from all_operations(inside)


def build(parts, needed_after):
    """Makes segments of parts, in order."""
    needed = set(needed_after)
    segments = []
    for part in reversed(parts):
        nodes = part.nodes
        made = {id(x): None for node in nodes for x in node.outputs}
        used = (id(x) for node in nodes for x in node.input_tensors)
        reads = list(dict.fromkeys(key for key in used if key not in made))
        writes = [key for key in made if key in needed]
        segments.append(
            Segment(
                nodes=nodes,
                remat=part.remat,
                reads=reads,
                writes=writes,
                inner=build(part.inner, writes),
                divided=part.divided,
                name=name_of(nodes),
                drops=drops_of(nodes, needed),
                graph=part.graph,
                inside=build(part.inside, results_of(part.graph)),
                keep=part.keep,
            )
        )
        needed.update(reads)
    return segments[::-1]


def results_of(graph):
    return [] if graph is None else [id(x) for x in graph.outputs]


def drops_of(nodes, needed_after):
    needed, drops = set(needed_after), []
    for node in reversed(nodes):
        used = {id(x) for x in node.input_tensors}
        drops.append((used | {id(x) for x in node.outputs}) - needed)
        needed |= used
    return drops[::-1]


def name_of(nodes):
    first, last = nodes[0].operation.name, nodes[-1].operation.name
    return first if first == last else f"{first} .. {last}"
