"""Weights are updated before the next region runs again.

An executor may leave updates for last: with few threads it goes on with the
backward pass as long as it can, and the gradients of all weights pile up.
The updates are not there yet while a gradient is taken, so each second run
waits behind a *gate*; when the trace of a graph ends, each gate is given the
updates that can run before it.
"""

import weakref

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

GATES = "_remat_gates"


def gate(gradients):
    """An operation that runs after gradients, and after updates they allow."""
    graph = tf.compat.v1.get_default_graph()
    with tf.control_dependencies(gradients):
        made = tf.no_op(name="remat_gate")
    if not hasattr(graph, GATES):
        setattr(graph, GATES, [])
        if hasattr(graph, "control_outputs"):
            graph.control_outputs = AtTheEnd(graph.control_outputs, graph)
    getattr(graph, GATES).append(made)
    return made


class AtTheEnd(list):
    """The control outputs of a graph, which get theirs when its trace ends.

    By then all operations have their control edges: new ones must not make
    a circle with them.
    """

    def __init__(self, given, graph):
        super().__init__(given)
        self.graph = weakref.ref(graph)

    def extend(self, operations):
        super().extend(operations)
        graph = self.graph()
        take_apart(graph)
        order_updates(graph)
        order_loops(graph)


def take_apart(graph):
    """Lets each update wait for its own gradient only.

    Optimizers pass all gradients through one operation, to reduce them over
    replicas; where there is one replica, it gives back what it is given.
    Results of the graph, of which gradients may be taken, stay as they are.
    """
    results = needed_for([x.op for x in graph.outputs], controls=False)
    for op in graph.get_operations():
        if op.type == "IdentityN" and op not in results:
            for given, same in zip(op.inputs, op.outputs):
                replace(same, given)


def replace(old, new):
    for op in set(old.consumers()):
        for i, x in enumerate(op.inputs):
            if x is old:
                op._update_input(i, new)


def order_updates(graph):
    """Lets each gate wait for updates, and these for who reads the old value.

    Operations are numbered by the last gate that they depend on. An edge leads
    from a number to the next one, or to an operation that was made later, as
    all edges do, so there is never a circle.
    """
    gates = getattr(graph, GATES)
    setattr(graph, GATES, [])
    numbers = {g: k for k, g in enumerate(gates, 1)}
    last, ready = {}, [[] for _ in range(len(gates) + 1)]
    live = needed_for([*(x.op for x in graph.outputs), *graph.control_outputs])
    for op in graph.get_operations():
        if op not in live:
            continue  # An edge from it would let it run.
        before = [x.op for x in op.inputs] + op.control_inputs
        known = [last.get(x, len(gates)) for x in before]
        number = last[op] = numbers.get(op) or max(known, default=0)
        if is_large_update(op):
            ready[number].append(op)
            old = readers(op.inputs[0], last) - {op}
            op._add_control_inputs([x for x in old if last[x] <= number])
    for g, updates in zip(gates, ready):
        g._add_control_inputs([op for op in updates if op.device == g.device])


UPDATES = ("Assign", "ResourceApply", "ResourceSparse", "ResourceScatter")


def is_large_update(op):
    """Whether an operation changes a weight that is more than a vector.

    The gradient of a bias is there before its layer runs again, but oneDNN
    makes it in one with that of the kernel: to wait for it would be a circle.
    """
    values = op.inputs[1:] if op.type.startswith(UPDATES) else ()
    return any((x.shape.rank or 0) > 1 for x in values)


def needed_for(operations, controls=True):
    """These operations, and all that they depend on."""
    found, waiting = set(), list(operations)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [x.op for x in op.inputs]
            waiting += op.control_inputs if controls else ()
    return found


def order_loops(graph):
    """Lets loops of the backward pass end each step before the next begins.

    Else what many steps give to the gradients of weights waits to be added.
    """
    one = attr_value_pb2.AttrValue(i=1)
    for op in graph.get_operations():
        if op.type.endswith("While") and "gradient" in op.name:
            op._set_attr("parallel_iterations", one)


def readers(handle, known):
    """Those of the operations in `known` that read the value of a variable.

    While one of them has it, an update would make a copy.
    """
    found = set()
    for read in handle.consumers():
        if read.type == "ReadVariableOp" and read in known:
            found |= users(read.outputs[0], known)
    return found


def users(x, known):
    found = set()
    for op in x.consumers():
        if op not in known:
            continue
        if op.type not in ("Identity", "IdentityN"):
            # A loop with an edge from it keeps more than it needs.
            found |= set() if op.type.endswith(("While", "If")) else {op}
            continue
        for given, same in zip(op.inputs, op.outputs):
            if given is x:
                found |= users(same, known)
    return found
