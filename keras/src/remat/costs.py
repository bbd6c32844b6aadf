"""Rough costs of nodes, from their output shapes."""

from keras.src.remat.chain import Chain
from keras.src.remat.graph import elements


def chain(function, nodes, specs):
    batch = next((s.shape[0] for s in specs if s is not None and s.shape), 1)
    index = {id(x): (i, x) for i, n in enumerate(nodes) for x in n.outputs}
    uses = {}
    for i, node in enumerate(nodes):
        for x in node.input_tensors:
            uses.setdefault(id(x), []).append(i)
    for x in function.outputs:
        uses.setdefault(id(x), []).append(len(nodes))
    outside = {id(x) for x in index}
    size = (
        lambda x: elements(x)
        * 4
        * (batch if x.shape and x.shape[0] is None else 1)
    )
    saved, values = [], []
    for i, node in enumerate(nodes):
        out = sum(size(x) for x in node.outputs)
        saved.append(out * factor(node.operation, node))
        for x in node.outputs:
            if id(x) in uses:
                values.append((i, size(x), sorted(uses[id(x)]), True))
    grads = [
        sum(
            elements(v) * 4
            for v in getattr(n.operation, "trainable_variables", [])
        )
        for n in nodes
    ]
    flops = [max(1, s) for s in saved]
    return Chain(saved, values, flops, grads, saved)


def factor(op, node):
    name = type(op).__name__
    return {"MultiHeadAttention": 10, "Dense": 2}.get(name, 1)
