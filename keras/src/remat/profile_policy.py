"""What regions keep by a policy, and what then need not run again.

Each engine's trace lists the products of an operation: matrix products,
convolutions and fused attention. Names are not seen, as layers give them only
while a region is open; nor is what a function would keep of other operations.
"""

import collections

Product = collections.namedtuple(
    "Product", ["op", "has_batch", "shape", "dtype", "bytes", "flops"]
)

Keeping = collections.namedtuple("Keeping", ["bytes", "flops", "last"])
Keeping.__doc__ = """What each node of a chain keeps where it runs again.

Args:
    bytes: Size of the results that it keeps.
    flops: Arithmetic that these spare.
    last: Share of `bytes` that counts if the second run ends in this node: it
        ends where the last residual is made, and results that come after
        that are not held. `None` for a node that makes no residuals.
"""


def keeping(costs, policy):
    """What each node keeps in a region with this policy.

    Args:
        costs: List of `NodeCost`.
        policy: A `RematPolicy`.

    Returns:
        A `Keeping`, or `None` if nothing is kept.
    """
    if not policy.keeps_something():
        return None
    sizes, flops, last = [], [], []
    for cost in costs:
        kept = [p for p in cost.products if is_kept(p, policy)]
        sizes.append(sum(p.bytes for p in kept))
        flops.append(sum(p.flops for p in kept))
        inside = bool(cost.saved_internal or cost.saves_outputs)
        reads = inside or bool(cost.saves_inputs)
        last.append(sizes[-1] * inside if reads else None)
    return Keeping(sizes, flops, last) if any(sizes) else None


def is_kept(product, policy):
    spec = lambda: (product.shape, product.dtype)
    return policy.keeps(product.op, product.has_batch, None, spec)
