"""The segments of a graph for a policy, once per model and input shapes."""

import collections

from keras.src import backend
from keras.src.backend import KerasTensor
from keras.src.backend.common import global_state
from keras.src.remat import plan as remat_plan

Segment = collections.namedtuple(
    "Segment",
    [
        "nodes",
        "remat",
        "reads",
        "writes",
        "inner",
        "inherits",
        "name",
        "drops",
    ],
)
Segment.__doc__ = """Nodes that run as one.

Args:
    nodes: List of `Node`, in order.
    remat: Whether they form a region.
    reads: Ids of tensors that come from before.
    writes: Ids of tensors that are needed after.
    inner: Segments that this one runs as; empty for all nodes at once.
    inherits: Whether nested models in it follow the policy by themselves.
    name: What error messages and tables call it.
    drops: For each node, ids of the tensors that nothing reads after it.
"""

CUTS = "_remat_cuts"


def segments_for(function, inputs, policy):
    """The segments of a graph for these inputs, from the cache if possible."""
    nested = global_state.get_global_attribute("remat_inherited") is not None
    shapes = tuple(shape_of(x) for x in inputs)
    known = batch_size() if (None,) in [s and s[:1] for s in shapes] else None
    key = (shapes, known, policy.key(), settings(function), nested)
    cuts = vars(function).setdefault(CUTS, {})
    if key not in cuts:
        if len(cuts) > 16:  # shapes that never repeat must not pile up
            cuts.clear()
        specs = [spec_of(x) for x in inputs]
        plan = remat_plan.RematPlan(function, specs, policy, nested)
        remat_plan.log(plan)
        cuts[key] = segments_of(plan)
    return cuts[key]


def segments_of(plan):
    """A plan's segments in the form in which a graph runs."""
    inherits = plan.budget is None
    parts = [part_of(plan.nodes, s, inherits) for s in plan.planned.segments]
    return build(parts, [id(x) for x in plan.function.outputs])


def part_of(nodes, s, inherits):
    inner = tuple(part_of(nodes, i, False) for i in s.inner)
    nodes = nodes[s.start : s.stop]
    nested = not s.remat and any(remat_plan.is_nested(n) for n in nodes)
    return (nodes, s.remat, inner, inherits and nested)


def shape_of(x):
    if x is None:
        return None
    return tuple(None if d is None else int(d) for d in x.shape)


def spec_of(x):
    if x is None:
        return None
    shape = shape_of(x)
    if shape[:1] == (None,):
        shape = (batch_size(), *shape[1:])
    known = tuple(remat_plan.UNKNOWN if d is None else d for d in shape)
    return KerasTensor(known, backend.standardize_dtype(x.dtype))


BATCH_SIZE = "remat_batch_size"


def note_batch_size(size):
    """Remembers what an unknown first dimension is: that of the data.

    TensorFlow traces `fit` without it, as the last batch may be smaller.
    """
    global_state.set_global_attribute(BATCH_SIZE, size)


def batch_size():
    return global_state.get_global_attribute(BATCH_SIZE) or remat_plan.UNKNOWN


def settings(function):
    """What the operations of a graph say for themselves."""
    found = []
    for i, op in enumerate(function.operations):
        own = vars(op).get("_remat_setting")
        scope = vars(op).get("_remat_scope")
        if own is not None or (scope is not None and scope.mode is None):
            found.append((i, own, scope is None or scope.mode))
    return tuple(found)


def build(parts, needed_after):
    """Makes segments of (nodes, remat, inner, inherits), in order."""
    needed = set(needed_after)
    segments = []
    for nodes, remat, inner, inherits in reversed(parts):
        made = {id(x): None for node in nodes for x in node.outputs}
        used = (id(x) for node in nodes for x in node.input_tensors)
        reads = list(dict.fromkeys(key for key in used if key not in made))
        writes = [key for key in made if key in needed]
        segments.append(
            Segment(
                nodes=nodes,
                remat=remat,
                reads=reads,
                writes=writes,
                inner=build(inner, writes) if inner else [],
                inherits=inherits,
                name=name_of(nodes),
                drops=drops_of(nodes, needed),
            )
        )
        needed.update(reads)
    return segments[::-1]


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
