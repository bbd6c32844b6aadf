"""Dataclasses among the results of a region, which no tree looks into.

A tensor that left a region unseen would get no gradient.
"""

import copy
import dataclasses

from keras.src import tree

OBJECT = "__dataclass__"


def spread(structure):
    """Makes dicts of the dataclass instances in a nest."""

    def one(x):
        if isinstance(x, type) or not dataclasses.is_dataclass(x):
            return x
        names = [f.name for f in dataclasses.fields(x) if hasattr(x, f.name)]
        return {n: spread(getattr(x, n)) for n in names} | {OBJECT: x}

    return tree.map_structure(one, structure)


def gathered(structure):
    """Undoes `spread`, with the values that the dicts have now."""

    def one(part):
        if not isinstance(part, dict) or OBJECT not in part:
            return None
        made = copy.copy(part[OBJECT])
        for name, value in part.items():
            if name != OBJECT:
                object.__setattr__(made, name, gathered(value))
        return made

    return tree.traverse(one, structure)
