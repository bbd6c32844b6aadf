"""What training keeps in memory, node by node, from shapes alone.

Each node of a graph is traced abstractly by the engine, as training would run
it (`keras/src/backend/<name>/remat_profile.py`): nothing runs, no activation
is allocated, no variable, seed or statistic moves. Shapes flow from node to
node, so that the batch and other unknown dimensions are those of the inputs
given.

A value that the backward pass reads is counted once: at the node that made
it, whoever reads it. Operations that only rename or reshape a value
share its memory (`aliases`).

Equal operations on equal shapes are traced once per process.

What is not exact: an engine may fuse or recompute cheap operations, which
makes the truth lower; masks that layers hand on count at their reader.
"""

import collections
import importlib

from keras.src import backend
from keras.src.remat.plan import ordered_nodes

def free_memory():
    """Bytes free on the default device, or `None` if it cannot be told."""
    return engine().free_memory()


def node_costs(function, nodes, input_specs, training=True, unprofiled=None):
    """The cost of each node of a graph, for these input shapes.

    Args:
        function: A `Function`, or a Functional model.
        nodes: List of `Node` in the order in which they run, without inputs.
        input_specs: Flat list of `KerasTensor`, one for each of
            `function.inputs`, without unknown dimensions; `None` for an input
            that is not given.
        training: Passed to the layers. Defaults to `True`.
        unprofiled: List that names of operations are added to which could not
            be traced. Defaults to `None`.

    Returns:
        List of `NodeCost`.
    """
    return Flow(function, input_specs, training, unprofiled).costs(nodes)


class Flow:
    """Carries the specs of values through a graph.

    Args:
        function: See `node_costs`.
        input_specs: List of `KerasTensor` or `Spec`.
        training: See `node_costs`.
        unprofiled: See `node_costs`.
    """

    def __init__(self, function, input_specs, training, unprofiled=None):
        self.function = function
        self.training = training
        self.unprofiled = [] if unprofiled is None else unprofiled
        specs = [spec_of(s) for s in input_specs]
        self.specs = {
            id(x): s for x, s in zip(function.inputs, specs) if s is not None
        }

    def costs(self, nodes):
        found = {}
        for node in ordered_nodes(self.function):
            if all(id(x) in self.specs for x in node.input_tensors):
                found[id(node)] = self.cost(node)
        return [found[id(node)] for node in nodes]

    def cost(self, node):
        tensors = node.input_tensors
        where = {}
        for i, x in enumerate(tensors):
            where.setdefault(id(x), i)
        used = list(where.values())

        def fill_in(given):
            return node.arguments.fill_in(dict(zip(where, given)))

        cost, outputs = operation_cost(
            node.operation,
            fill_in,
            [self.specs[id(tensors[i])] for i in used],
            self.training,
            self.unprofiled,
        )
        for x, s in zip(node.outputs, outputs):
            self.specs[id(x)] = s
        return cost._replace(
            saves_inputs=tuple(used[i] for i in cost.saves_inputs),
            aliases=tuple(
                None if a is None else used[a] for a in cost.aliases
            ),
        )


def operation_cost(operation, fill_in, specs, training, unprofiled):
    """The cost of one call, from the cache if it was traced before.

    Args:
        operation: An `Operation` or layer.
        fill_in: Takes a list of tensors, returns `(args, kwargs)`.
        specs: List of `Spec` of those tensors.
        training: See `node_costs`.
        unprofiled: See `node_costs`.

    Returns:
        Tuple of a `NodeCost` and the list of `Spec` of the outputs.
    """
    context = {}
    if "training" in getattr(operation, "_call_context_args", ()):
        context["training"] = training
    arguments = fill_in([Position(i) for i in range(len(specs))])
    graph = nested_graph(operation, arguments, specs)
    if graph is not None:
        return graph_cost(*graph, training, unprofiled)
    key = profile_key.key_of(operation, arguments, specs, context)
    found = CACHE.get(key)
    if found is None:
        found = traced(operation, fill_in, specs, context)
        if key is not None:
            if len(CACHE) > 4096:
                CACHE.clear()
            CACHE[key] = found
    if not found[0].profiled:
        unprofiled.append(operation.name)
    return found


CACHE = {}


def nested_graph(operation, arguments, specs):
    """A model's graph and the specs of its inputs, if it only runs that."""
    from keras.src.models.functional import Functional
    from keras.src.models.sequential import Sequential

    if getattr(type(operation), "call", None) not in (
        Functional.call,
        Sequential.call,
    ):
        return None
    graph, (args, kwargs) = graph_of(operation), arguments
    given = tree.flatten(args)
    if graph is None or len(args) != 1 or len(given) != len(graph.inputs):
        return None
    if not all(isinstance(x, Position) for x in tree.flatten(args, is_leaf)):
        return None
