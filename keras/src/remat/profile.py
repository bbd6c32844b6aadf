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

NodeCost = collections.namedtuple(
    "NodeCost",
    [
        "saved_internal",
        "saves_inputs",
        "saves_outputs",
        "aliases",
        "output_bytes",
        "flops",
        "grads",
        "scratch",
        "kept_by_matmuls",
        "profiled",
    ],
)
NodeCost.__doc__ = """What one operation costs in training, in bytes.

Args:
    saved_internal: Residuals that are neither its inputs, nor its outputs,
        nor variables.
    saves_inputs: Indices of input tensors that its backward pass reads.
    saves_outputs: Indices of outputs that its backward pass reads.
    aliases: For each output, the index of the input tensor whose memory it
        shares, or `None`.
    output_bytes: Size of each output.
    flops: Arithmetic of the forward run; a number of operations, not bytes.
    grads: Size of the gradients of its trainable weights.
    scratch: Estimate of what is there only while it, or its backward, runs.
    kept_by_matmuls: Size of the results of matrix products and convolutions.
    profiled: Whether the engine traced it; if not, all is an estimate.
"""

Spec = collections.namedtuple(
    "Spec", ["shape", "dtype", "differentiable", "mask"], defaults=[None]
)
Spec.__doc__ = """A value of the graph.

Args:
    shape: Tuple of integers.
    dtype: String.
    differentiable: Whether a gradient flows back through it.
    mask: `(shape, dtype)` of its mask, or `None`.
"""


def engine():
    name = f"keras.src.backend.{backend.backend()}.remat_profile"
    return importlib.import_module(name)


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
        self.specs = {id(x): s for x, s in zip(function.inputs, specs)}

    def costs(self, nodes):
        found = {}
        for node in ordered_nodes(self.function):
            if all(id(x) in self.specs for x in node.input_tensors):
                found[id(node)] = self.cost(node)
        return [found[id(node)] for node in nodes]

    def cost(self, node):
        given = [self.specs[id(x)] for x in node.input_tensors]
        cost, outputs = operation_cost(
            node.operation,
            node.input_tensors,
            node.arguments.fill_in,
            given,
            self.training,
            self.unprofiled,
        )
        if not cost.profiled:
            self.unprofiled.append(node.operation.name)
        for x, s in zip(node.outputs, outputs):
            self.specs[id(x)] = s
        return cost


def spec_of(x):
    if x is None or isinstance(x, Spec):
        return x
    if None in x.shape:
        raise ValueError(
            "A profile needs the size of every dimension. Received: an input "
            f"of shape {x.shape}. Fill in the batch size and all the rest."
        )
    return Spec(tuple(x.shape), backend.standardize_dtype(x.dtype), False)
