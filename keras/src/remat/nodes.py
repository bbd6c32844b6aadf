"""Runs the nodes of a graph, those of one `keras.remat(f)` as a region."""

from keras.src import tree
from keras.src.backend.common import remat_marks
from keras.src.backend.common.keras_tensor import any_symbolic_tensors
from keras.src.backend.common.remat_region import run_region
from keras.src.backend.common.remat_results import engine
from keras.src.backend.common.remat_scope import without_scopes
from keras.src.remat.structure import nodes_of

MARKED = "_remat_has_marks"


def has_marks(function):
    """Whether `keras.remat` was called on symbolic tensors of the graph."""
    known = vars(function).get(MARKED)
    if known is None:
        known = any(node.remat_marks for node in nodes_of(function))
        vars(function)[MARKED] = known
    return known


def run_marked_graph(function, values, operation_fn):
    """Runs a graph that has no regions but those of `keras.remat`.

    Args:
        function: The `Function`.
        values: Dict from the id of a symbolic tensor to its value, which gets
            those of the outputs.
        operation_fn: Maps an operation to what is called in its place.
    """
    nodes = nodes_of(function)
    needed = {id(x) for x in function.outputs}
    drops = {id(x) for node in nodes for x in node.outputs} - needed
    run_units(nodes, values, operation_fn, needed, drops)


def run_nodes(segment, values, operation_fn):
    """Runs the nodes of a segment."""
    if any(node.remat_marks for node in segment.nodes):
        drops = set().union(*segment.drops)
        needed = segment.writes
        run_units(segment.nodes, values, operation_fn, needed, drops)
        return
    for node, dropped in zip(segment.nodes, segment.drops):
        run_node(node, values, operation_fn, in_order=True)
        drop(values, dropped)


def run_units(nodes, values, operation_fn, needed, drops=()):
    """Runs nodes, those of one mark as one.

    Args:
        nodes: List of `Node`, in order.
        values: Dict from the id of a symbolic tensor to its value.
        operation_fn: Maps an operation to what is called in its place.
        needed: Ids of tensors that are needed after.
        drops: Ids of tensors that nothing reads after.
    """
    for mark, unit, used_after, dropped in planned(nodes, needed, set(drops)):
        if mark is None:
            for node in unit:
                run_node(node, values, operation_fn)
        else:
            run_marked(mark, unit, values, operation_fn, used_after)
        drop(values, dropped)


def planned(nodes, needed, drops):
    """The units in order, with what is read after each and what is not."""
    used, plan = set(needed), []
    for mark, unit in reversed(remat_marks.units(nodes)):
        reads = reads_of(unit)
        made = [id(x) for node in unit for x in node.outputs]
        dropped = [k for k in (*reads, *made) if k in drops and k not in used]
        plan.append((mark, unit, used.copy() if mark else None, dropped))
        used.update(reads)
    return plan[::-1]


def run_marked(mark, nodes, values, operation_fn, needed):
    """Runs nodes that `keras.remat` recorded, as it would run them."""
    reads = [key for key in reads_of(nodes) if key in values]
    made = [id(x) for node in nodes for x in node.outputs]
    marks = (*remat_marks.open_marks(), mark)
    writes = []
    if any_symbolic_tensors([values[key] for key in reads]):
        with remat_marks.opened(marks):  # a clone has the same marks
            return run_units(nodes, values, operation_fn, needed)

    def f(given):
        inside = dict(zip(reads, given))
        with remat_marks.opened(marks):
            run_units(nodes, inside, operation_fn, needed)
        writes[:] = [key for key in made if key in needed and key in inside]
        return [inside[key] for key in writes]

    given = ([values[key] for key in reads],)
    results = run_region(
        without_scopes(f), given, policy=mark.policy, name=mark.name
    )
    values.update(zip(writes, results))


def run_node(node, values, operation_fn, in_order=False):
    """Runs one node.

    Args:
        node: The `Node`.
        values: Dict from the id of a symbolic tensor to its value, which gets
            those of its outputs.
        operation_fn: Maps an operation to what is called in its place.
        in_order: Whether its backward run is to end before that of nodes
            before it begins. Defaults to `False`.
    """
    given = {id(x): values.get(id(x), MISSING) for x in node.input_tensors}
    if any(value is MISSING for value in given.values()):
        return  # not computable from the inputs that are given
    args, kwargs = node.arguments.fill_in(given)
    call = operation_fn(node.operation)
    if in_order:
        call = engine().in_order(call)
    outputs = call(*args, **kwargs)
    for x, y in zip(node.outputs, tree.flatten(outputs)):
        values[id(x)] = y


MISSING = object()


def drop(values, keys):
    """Lets go of tensors that nothing reads any more."""
    for key in keys:
        values.pop(key, None)


def reads_of(nodes):
    """Ids of the tensors that nodes read from outside."""
    made = {id(x) for node in nodes for x in node.outputs}
    used = (id(x) for node in nodes for x in node.input_tensors)
    return [key for key in dict.fromkeys(used) if key not in made]
