"""A graph with the models in it opened: what a plan is made of.

A model inside of a model is one node of the outer graph, but no unit of work:
as one region its second run keeps all at once. So a plan is made over the
*units* of all graphs in the order in which they run. A model that is called
twice has its units twice.

Each model still runs as itself, with its own masks, name scope and dtype, so
a region lies within one graph. `Borders` tells the planner: it may have whole
models in it, or a part of one, but not the end of one and what follows.
"""

import collections

import numpy as np

from keras.src import tree
from keras.src.backend import KerasTensor
from keras.src.remat import recurrent
from keras.src.remat.inherited import decides_itself
from keras.src.remat.planned import Segment
from keras.src.remat.structure import graph_of
from keras.src.remat.structure import holds_blocks
from keras.src.remat.structure import nodes_of
from keras.src.remat.structure import runs_graph

Item = collections.namedtuple("Item", ["node", "start", "stop", "level"])
Item.__doc__ = """A node of one graph, and the units it stands for.

Args:
    node: The `Node`.
    start: First unit.
    stop: Unit after the last.
    level: The `Level` in it, or `None` if it is one unit.
"""

Level = collections.namedtuple("Level", ["function", "items"])
Level.__doc__ = """One graph among those that a plan is made over.

Args:
    function: The `Function`.
    items: List of `Item`, in order.
"""


class Unit:
    """One operation of a graph, with tensors that are this call's own.

    It looks to `profile.py` as a `Node` does.

    Args:
        node: The `Node`.
        tensors: What stands for each tensor, by its id; gets the outputs.
        path: The operations that it is in, the outermost first.
        is_own: Whether the node's outputs are needed under their own ids.
    """

    def __init__(self, node, tensors, path, is_own):
        self.node = node
        self.operation = node.operation
        self.path = (*path, node.operation)
        self.input_tensors = [
            tensors.setdefault(id(x), x) for x in node.input_tensors
        ]
        self.outputs = [x if is_own else Tensor(x) for x in node.outputs]
        tensors.update(zip(map(id, node.outputs), self.outputs))

    @property
    def arguments(self):
        return self

    def fill_in(self, values):
        """Arguments of the call, from values by the id of our tensors."""
        pairs = zip(self.node.input_tensors, self.input_tensors)
        given = {
            id(x): values[id(ours)] for x, ours in pairs if id(ours) in values
        }
        return self.node.arguments.fill_in(given)


class Tensor:
    """Stands for a tensor of a graph in one call of it."""

    def __init__(self, x):
        self.shape, self.dtype = x.shape, x.dtype


class Units:
    """The units of a graph and of the graphs in it.

    Args:
        function: The `Function`.

    Attributes:
        nodes: List of `Unit`, in order.
        level: The `Level` of `function`.
    """

    def __init__(self, function):
        self.function = function
        self.name = function.name
        self.inputs = function.inputs
        self.nodes, self.calls = [], []
        tensors = {id(x): x for x in function.inputs}
        self.level = self.opened(function, tensors, ())
        self.outputs = [tensors.get(id(x), x) for x in function.outputs]

    def opened(self, function, tensors, path):
        items = []
        for node in ordered_nodes(function):
            start, level = len(self.nodes), None
            inside = inner_graph(node)
            if inside is None:
                unit = Unit(node, tensors, path, not path)
                self.nodes.append(unit)
            else:
                level = self.call(node, inside, tensors, path)
            items.append(Item(node, start, len(self.nodes), level))
        return Level(function, items)

    def call(self, node, function, tensors, path):
        given = tree.flatten(node.arguments.args[0])
        ours = [tensors.setdefault(id(x), x) for x in given]
        inside = dict(zip(map(id, function.inputs), ours))
        start = len(self.nodes)
        path = (*path, node.operation)
        level = self.opened(function, inside, path)
        self.calls.append((start, len(self.nodes)))
        for x, inner in zip(node.outputs, function.outputs):
            tensors[id(x)] = inside[id(inner)]
        return level

    def borders(self, start=0, stop=None, stays_plain=None):
        """The `Borders` of the units from `start` to `stop`.

        Args:
            start: First unit.
            stop: Unit after the last. Defaults to the end.
            stays_plain: Says of a unit whether no region may have it.
                Defaults to `None`: none is like that.
        """
        stop = len(self.nodes) if stop is None else stop
        borders = Borders(stop - start)
        for first, last in self.calls:
            borders.add_call(first - start, last - start)
        for i in range(start, stop):
            if stays_plain is not None and stays_plain(self.nodes[i]):
                borders.leave_out(i - start)
        return borders


class Borders:
    """Which parts of a chain may be a region.

    Args:
        n: Number of units.

    Attributes:
        until: For each position, where a region from there ends at the latest.
        since: For each position, where one to there begins at the earliest.
        depth: In how many models each position lies.
        calls: List of first and last position of each model.
    """

    def __init__(self, n):
        self.n = n
        self.until = np.full(n + 1, n)
        self.since = np.zeros(n + 1, np.int64)
        self.depth = np.zeros(n + 1, np.int64)
        self.calls = []

    def add_call(self, start, stop):
        if stop <= 0 or start >= self.n:
            return
        inside = slice(max(0, start + 1), min(stop, self.n + 1))
        start, stop = max(0, start), min(stop, self.n)
        self.until[inside] = np.minimum(self.until[inside], stop)
        self.since[inside] = np.maximum(self.since[inside], start)
        self.depth[inside] += 1
        self.calls.append((start, stop))

    def leave_out(self, unit):
        before, after = slice(None, unit + 1), slice(unit + 1, None)
        self.until[before] = np.minimum(self.until[before], unit)
        self.since[after] = np.maximum(self.since[after], unit + 1)

    def allow(self, start, stops):
        """Whether a region may go from `start` to each of `stops`."""
        return (stops <= self.until[start]) & (start >= self.since[stops])

    def divided(self, start, stop):
        """The pairs of positions that make `[start, stop)` of regions."""
        found = []
        while start < stop:
            stops = np.arange(start + 1, stop + 1)
            allowed = stops[self.allow(start, stops)]
            end = int(allowed[-1]) if len(allowed) else start + 1
            found.append((start, end))
            start = end
        return found


def inner_graph(node):
    """The graph that a node runs and that a plan may cut, or `None`.

    Args:
        node: A `Node`.

    Returns:
        A `Function` of more than one node whose inputs are tensors of the
        outer graph as they are; of a model without a setting of its own.
    """
    if has_setting(node) or node.remat_marks or not runs_graph(node.operation):
        return None
    function = graph_of(node.operation)
    if function is None or len(ordered_nodes(function)) < 2:
        return None
    given = tree.flatten(node.arguments.args[:1])
    ids = {id(x) for x in given}
    if any(id(x) not in ids for x in node.input_tensors):
        return None
    return function if takes(function, node.arguments.args) else None


def takes(function, args):
    """Whether a graph takes its arguments as they are."""
    try:
        tree.assert_same_structure(args[0], function._inputs_struct)
    except (IndexError, TypeError, ValueError):
        return False
    return all(
        isinstance(x, KerasTensor) and len(x.shape) == len(inner.shape)
        for x, inner in zip(tree.flatten(args[0]), function.inputs)
    )


def ordered_nodes(function):
    """The nodes in the order in which `Function` runs them."""
    if isinstance(function, Units):
        return function.nodes
    return nodes_of(function)


def has_setting(node):
    """Whether the layer of a node says itself whether it runs again."""
    return decides_itself(node.operation)


def stays_out(node):
    """Whether a node is in no region: some are divided by themselves."""
    return has_setting(node) or is_nested(node)


def can_divide(node):
    """Whether a plan may have a node run by its own parts."""
    return is_nested(node) and not has_setting(node)


def is_nested(node):
    """Whether a node has parts of its own: layers, or steps in time."""
    if is_recurrent(node) or holds_blocks(node.operation):
        return True
    inside = graph_of(node.operation)
    return inside is not None and len(ordered_nodes(inside)) > 1


def is_recurrent(node):
    """Whether a node is a loop over time that has parts, or two of them."""
    layer = getattr(node.operation, "forward_layer", node.operation)
    return recurrent.loops_over_time(layer)


def run_by_themselves(nodes, start, every):
    """Segments of nodes in no region: divided, if they have parts.

    Of recurrent layers each `every`-th; rows of blocks count for themselves.
    """
    found, count = [], 0
    for i, node in enumerate(nodes, start):
        divided = can_divide(node)
        if divided and is_recurrent(node):
            divided, count = count % every == 0, count + 1
        found.append(Segment(i, i + 1, False, (), float(divided)))
    return found
