"""Dataclasses and iterators that enter and leave a region: no tree opens them.

A tensor that left a region unseen would get no gradient. An instance that the
function changes, or an iterator that it uses up, would be another one when it
runs again.
"""

import copy
import dataclasses
import itertools
import types

from keras.src import tree

OBJECT = "__dataclass__"


ITERATORS = (types.GeneratorType, enumerate, filter, map, reversed, zip)
MANY = 10_000


class Held:
    """What stands for an instance whose parts are held apart.

    Args:
        instance: The instance; `None` for an iterator.
    """

    def __init__(self, instance):
        self.instance = instance

    def __repr__(self):
        kind = "iterator" if self.instance is None else type(self.instance)
        return getattr(kind, "__name__", kind)

    def with_parts(self, parts):
        if self.instance is None:
            return iter([parts[key] for key in sorted(parts)])
        made = copy.copy(self.instance)
        for name, value in parts.items():
            object.__setattr__(made, name, value)
        return made


def spread(structure, is_tensor):
    """Makes dicts of iterators, and of dataclass instances that hold tensors.

    Args:
        structure: The nest.
        is_tensor: Says of a leaf whether it is a tensor.
    """

    def one(x):
        if isinstance(x, ITERATORS):
            return parts_of(x, is_tensor) | {OBJECT: Held(None)}
        if not has_parts(x):
            return x
        names = [f.name for f in dataclasses.fields(x) if hasattr(x, f.name)]
        parts = {n: spread(getattr(x, n), is_tensor) for n in names}
        leaves = tree.flatten(parts)
        if not any(isinstance(v, Held) or is_tensor(v) for v in leaves):
            return x  # a layer, a configuration
        return parts | {OBJECT: Held(x)}

    return tree.map_structure(one, structure)


def has_parts(x):
    """Whether `x` is an iterator, or an instance of a dataclass."""
    if isinstance(x, ITERATORS):
        return True
    return dataclasses.is_dataclass(x) and not isinstance(x, type)


def parts_of(iterator, is_tensor):
    parts = list(itertools.islice(iterator, MANY + 1))
    if len(parts) > MANY:
        raise ValueError(
            "An iterator that a rematerialized function takes or returns must "
            f"end, as it is read ahead. Received: {iterator}, which gives more "
            f"than {MANY} values. Use a list, or call it inside."
        )
    return {f"{i:05}": spread(x, is_tensor) for i, x in enumerate(parts)}


def gathered(structure):
    """Undoes `spread`, with the values that the dicts have now."""

    def one(part):
        if not isinstance(part, dict) or OBJECT not in part:
            return None
        parts = {k: gathered(x) for k, x in part.items() if k != OBJECT}
        return part[OBJECT].with_parts(parts)

    return tree.traverse(one, structure)
