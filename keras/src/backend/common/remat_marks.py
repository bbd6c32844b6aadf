"""Marks: what `keras.remat(f)` leaves in a graph of symbolic tensors.

On symbolic inputs `f` is recorded node by node, so that a Functional model
has its layers, and each node gets a mark. When the graph runs, the nodes of
one mark run as one region. Such a set is convex: a node that `f` made reads
nothing that was made after `f` returned. So it can always run as a unit.
"""

import collections
import heapq
import uuid

from keras.src.backend.common import global_state
from keras.src.backend.common.remat_attributes import attributes
from keras.src.backend.common.remat_policy import get_policy

OPEN = "remat_marks"

Mark = collections.namedtuple("Mark", ["key", "name", "policy"])


def open_marks():
    """The marks of a node that is recorded, or run, now: outermost first."""
    return global_state.get_global_attribute(OPEN) or ()


def opened(marks):
    return attributes(**{OPEN: tuple(marks)})


def recording(name, policy):
    """Marks the nodes that are recorded in this context as one region."""
    return opened((*open_marks(), Mark(uuid.uuid4().hex, name, policy)))


def config_of(node):
    """The marks of a node, as an entry in its config, if it has any."""
    marks = [
        {
            "key": mark.key,
            "name": mark.name,
            "policy": mark.policy and mark.policy.get_config(),
        }
        for mark in node.remat_marks
    ]
    return {"remat": marks} if marks else {}


def restored(node_config):
    """Marks the nodes that are recorded in this context as they were saved."""
    saved = isinstance(node_config, dict) and node_config.get("remat")
    return opened(
        Mark(m["key"], m["name"], get_policy(m["policy"])) for m in saved or ()
    )


def units(nodes):
    """Groups nodes so that those of one mark are run as one.

    Args:
        nodes: List of `Node`, each after those that it reads from.

    Returns:
        List of `(mark, nodes)` in an order in which they can run, close to
        the given one. `mark` is `None` for nodes that run by themselves.
    """
    is_open = {mark.key for mark in open_marks()}
    groups = {}
    for i, node in enumerate(nodes):
        mark = next((m for m in node.remat_marks if m.key not in is_open), None)
        key = i if mark is None else mark.key
        groups.setdefault(key, (mark, []))[1].append(node)
    groups = list(groups.values())
    return [groups[i] for i in order_of([nodes for _, nodes in groups])]


def order_of(groups):
    """The order in which groups of nodes can run: the earliest first."""
    maker = {
        id(x): i for i, g in enumerate(groups) for n in g for x in n.outputs
    }
    before = [
        {maker[id(x)] for n in g for x in n.input_tensors if id(x) in maker}
        for g in groups
    ]
    after = collections.defaultdict(list)
    for i, found in enumerate(before):
        found.discard(i)
        for j in found:
            after[j].append(i)
    ready = [i for i, found in enumerate(before) if not found]
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for i in after[order[-1]]:
            before[i].discard(order[-1])
            if not before[i]:
                heapq.heappush(ready, i)
    return order
