"""The planner's view of consecutive nodes: from the profile, or from shapes."""

from keras.src.remat.chain import Chain
from keras.src.remat.graph import elements


def chain_of(function, nodes, specs, unprofiled):
    """A `Chain` of nodes.

    Args:
        function: The `Function` they belong to.
        nodes: List of `Node`, in order.
        specs: Flat list of `KerasTensor`, the function's inputs.
        unprofiled: List that names are added to, of operations whose costs
            are guessed from the shapes of their results.

    Returns:
        A `Chain`.
    """
    from keras.src.remat import profile

    if not hasattr(profile, "chain_of"):
        return rough_chain(function, nodes, specs)
    costs = profile.node_costs(function, nodes, specs, True, unprofiled)
    return profile.chain_of(function, nodes, costs)


def rough_chain(function, nodes, specs):
    batch = next((s.shape[0] for s in specs if s is not None and s.shape), 1)

    def size(x):
        unknown = bool(x.shape) and x.shape[0] is None
        return elements(x) * 4 * (batch if unknown else 1)

    uses = {}
    for i, node in enumerate(nodes):
        for x in node.input_tensors:
            uses.setdefault(id(x), []).append(i)
    for x in function.outputs:
        uses.setdefault(id(x), []).append(len(nodes))
    saved, values, grads = [], [], []
    for i, node in enumerate(nodes):
        saved.append(2 * sum(size(x) for x in node.outputs))
        for x in node.outputs:
            if id(x) in uses:
                values.append((i, size(x), sorted(uses[id(x)]), True))
        weights = getattr(node.operation, "trainable_variables", [])
        grads.append(sum(4 * elements(v) for v in weights))
    return Chain(saved, values, [max(1, s) for s in saved], grads, saved)
