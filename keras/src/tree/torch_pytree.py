"""torch's pytree, with a `tree_flatten` that leaves no reference cycle.

torch's own walks the tree by an inner function that refers to itself, and so
keeps its `is_leaf` argument alive until Python's garbage collector runs. Keras
passes functions that hold the tree: the tensors of every layer with a list
input would stay in memory.
"""

from torch.utils import _pytree

# `LeafSpec()` warns in newer versions, which have this instead.
_leaf_spec = getattr(_pytree, "treespec_leaf", None) or _pytree.LeafSpec


def __getattr__(name):
    return getattr(_pytree, name)


def tree_flatten(tree, is_leaf=None):
    """Like `torch.utils._pytree.tree_flatten`."""
    leaves = []
    return leaves, _flatten_into(leaves, tree, is_leaf)


def _flatten_into(leaves, node, is_leaf):
    kind = _pytree._get_node_type(node)
    at_leaf = kind not in _pytree.SUPPORTED_NODES
    if at_leaf or (is_leaf is not None and is_leaf(node)):
        leaves.append(node)
        return _leaf_spec()
    children, context = _pytree.SUPPORTED_NODES[kind].flatten_fn(node)
    specs = [_flatten_into(leaves, child, is_leaf) for child in children]
    return _pytree.TreeSpec(kind, context, specs)
