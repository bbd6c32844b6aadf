"""What models are made of: graphs, nodes, rows of blocks."""

import collections


def graph_of(model):
    """The graph that a model runs, or `None` if it is not made of one."""
    if hasattr(model, "_nodes_by_depth"):
        return model
    return getattr(model, "_functional", None)


def runs_graph(operation):
    """Whether a model's call is that of its graph, and no other."""
    from keras.src.models.functional import Functional
    from keras.src.models.sequential import Sequential

    call = getattr(type(operation), "call", None)
    return call in (Functional.call, Sequential.call)


def nodes_of(function):
    """The nodes in the order in which `Function` runs them, without inputs."""
    by_depth = function._nodes_by_depth
    nodes = [n for d in sorted(by_depth, reverse=True) for n in by_depth[d]]
    return [n for n in nodes if n.operation is not None and not n.is_input]


BLOCKS = 3  # two may be the attentions of one decoder block


def holds_blocks(op):
    """Whether a layer is a row of blocks, such as an encoder, and no block.

    As one region it would save nothing: its second run keeps all at once.

    Args:
        op: An operation, layer or model.

    Returns:
        A boolean: whether several of its child layers are of one class and
        have child layers themselves.
    """
    if not hasattr(op, "_flatten_layers"):
        return False
    composite = collections.Counter(
        type(child) for child in children_of(op) if children_of(child)
    )
    return max(composite.values(), default=0) >= BLOCKS


def children_of(layer):
    return list(layer._flatten_layers(include_self=False, recursive=False))
