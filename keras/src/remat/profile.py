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

import functools

from keras.src import tree
from keras.src.remat import profile_key
from keras.src.remat import units
from keras.src.remat import ways
from keras.src.remat.chain import Chain
from keras.src.remat.inherited import dividing
from keras.src.remat.inherited import scope_for
from keras.src.remat.profile_kept import Kept
from keras.src.remat.profile_policy import choices
from keras.src.remat.profile_policy import keeping
from keras.src.remat.profile_trace import NodeCost
from keras.src.remat.profile_trace import Position
from keras.src.remat.profile_trace import engine
from keras.src.remat.profile_trace import spec_of
from keras.src.remat.profile_trace import traced
from keras.src.remat.structure import graph_of
from keras.src.remat.structure import runs_graph
from keras.src.remat.units import ordered_nodes


def node_costs(
    function, nodes, input_specs, training=True, unprofiled=None, policy=None
):
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
        policy: The `RematPolicy` of units that can be divided, see `ways.py`.
            Defaults to `None`: what they cost divided is left out.

    Returns:
        List of `NodeCost`.
    """
    flow = Flow(function, input_specs, training, unprofiled, policy)
    return flow.costs(nodes)


class Flow:
    """Carries the specs of values through a graph.

    Args:
        function: See `node_costs`.
        input_specs: List of `KerasTensor` or `Spec`.
        training: See `node_costs`.
        unprofiled: See `node_costs`.
        policy: See `node_costs`.
    """

    def __init__(
        self, function, input_specs, training, unprofiled=None, policy=None
    ):
        self.function = function
        self.training = training
        self.policy = policy
        self.unprofiled = [] if unprofiled is None else unprofiled
        # An optional input that is not given is `None`.
        specs = [spec_of(s) for s in input_specs]
        self.specs = dict(zip(map(id, function.inputs), specs))

    def costs(self, nodes):
        found = {}
        for node in ordered_nodes(self.function):
            if all(id(x) in self.specs for x in node.input_tensors):
                found[id(node)] = self.cost(node)
        return [found[id(node)] for node in nodes]

    def cost(self, node):
        tensors = node.input_tensors
        where, absent = {}, {}
        for i, x in enumerate(tensors):
            if self.specs[id(x)] is None:
                absent[id(x)] = None
            else:
                where.setdefault(id(x), i)
        used = list(where.values())

        def fill_in(given):
            return node.arguments.fill_in(dict(zip(where, given)) | absent)

        specs = [self.specs[id(tensors[i])] for i in used]
        call = node.operation, fill_in, specs, self.training
        cost, outputs = operation_cost(*call, self.unprofiled)
        for x, s in zip(node.outputs, outputs):
            self.specs[id(x)] = s
        cost = of_inputs(cost, used)
        if self.policy is None or not units.can_divide(node):
            return cost
        divided = {}
        for share in shares_to_trace(node):
            found, _ = operation_cost(*call, [], self.policy, share)
            divided[share] = of_inputs(found, used)
        traced = all(c.profiled for c in divided.values())
        return cost._replace(divided=divided if traced else None)


def shares_to_trace(node):
    """Steps in time may be all alike: one trace says what a share costs."""
    alike = units.is_recurrent(node) and engine().STEPS_ALIKE
    return ways.SHARES[:1] if alike else ways.SHARES


def of_inputs(cost, used):
    """A cost in which inputs have the indices that `used` gives them."""
    return cost._replace(
        saves_inputs=tuple(used[i] for i in cost.saves_inputs),
        aliases=tuple(None if a is None else used[a] for a in cost.aliases),
    )


def operation_cost(
    operation, fill_in, specs, training, unprofiled, policy=None, share=1
):
    """The cost of one call, from the cache if it was traced before.

    Args:
        operation: An `Operation` or layer.
        fill_in: Takes a list of tensors, returns `(args, kwargs)`.
        specs: List of `Spec` of those tensors.
        training: See `node_costs`.
        unprofiled: See `node_costs`.
        policy: The `RematPolicy` of the operation's parts, which then are
            regions. Defaults to `None`.
        share: The share of its parts that are regions. Defaults to `1`.

    Returns:
        Tuple of a `NodeCost` and the list of `Spec` of the outputs.
    """
    context = {}
    if "training" in getattr(operation, "_call_context_args", ()):
        context["training"] = training
    arguments = fill_in([Position(i) for i in range(len(specs))])
    nested = nested_graph(operation, arguments, specs)
    if nested is not None and policy is None:
        return graph_cost(*nested, training, unprofiled)
    key = profile_key.key_of(operation, arguments, specs, context)
    call = operation, fill_in, specs, context
    if policy is not None:
        policy = policy.replaced(memory_budget=None)
        key = key and (key, policy.key(), share)
        scope = scope_for(policy, explicit=True)
        call = *call, functools.partial(dividing, scope, 0, share)
    found = CACHE.get(key)
    if found is None:
        found = traced(*call)
        if key is not None:
            if len(CACHE) > 4096:
                CACHE.clear()
            CACHE[key] = found
    if not found[0].profiled:
        unprofiled.append(operation.name)
    return found


CACHE = {}


def nested_graph(operation, arguments, specs):
    """A model's graph and the specs of its inputs, if it only runs that."""
    if not runs_graph(operation):
        return None
    graph, given = graph_of(operation), tree.flatten(arguments[0])
    if graph is None or len(given) != len(graph.inputs):
        return None
    if not all(isinstance(x, Position) for x in given):
        return None
    return graph, [specs[x.index] for x in given], [x.index for x in given]


def graph_cost(graph, specs, order, training, unprofiled):
    """The cost of a nested graph, from those of its nodes."""
    flow = Flow(graph, specs, training, unprofiled)
    nodes = ordered_nodes(graph)
    costs = flow.costs(nodes)
    kept = Kept(graph, nodes, costs)
    roots = [kept.root(x) for x in graph.outputs]
    came_in = {id(x): order[i] for i, x in enumerate(graph.inputs)}
    ours = {r for r in roots if r in kept.saved and r in kept.made}
    sizes = [kept.size(x) for x in graph.outputs]
    cost = NodeCost(
        saved_internal=sum(kept.by_node()) - sum(kept.made[r][1] for r in ours),
        saves_inputs=tuple(
            sorted(came_in[r] for r in kept.saved if r in came_in)
        ),
        saves_outputs=tuple(i for i, r in enumerate(roots) if r in kept.saved),
        aliases=tuple(came_in.get(r) for r in roots),
        output_bytes=tuple(sizes),
        flops=sum(c.flops for c in costs),
        grads=sum(kept.grads()),
        scratch=max((c.scratch for c in costs), default=0),
        kept_by_matmuls=sum(c.kept_by_matmuls for c in costs),
        profiled=all(c.profiled for c in costs),
        beyond=sum(kept.beyond),
        constants=sum(c.constants for c in costs),
        made=sum((c.made for c in costs), ()),
    )
    return cost, [flow.specs[id(x)] for x in graph.outputs]


def chain_of(
    function, nodes, costs, has_loss=False, policy=None, chooses=False
):
    """What the planner works on.

    Args:
        function: The `Function`.
        nodes: List of consecutive `Node`, in order.
        costs: List of their `NodeCost`.
        has_loss: Whether a loss of the results follows, one which works on
            each element, as most do. Defaults to `False`.
        policy: The `RematPolicy` of its regions. Defaults to `None`: they
            keep nothing.
        chooses: Whether the planner may let each region keep more. Defaults
            to `False`.

    Returns:
        A `Chain`. Values that come from before `nodes` are not in it.
    """
    kept = Kept(function, nodes, costs)
    at_once = engine().UPDATES_AT_ONCE
    results = sum(kept.size(x) for x in function.outputs) if has_loss else 0
    loss = results * engine().LOSS_COPIES
    chain = Chain(
        kept.by_node(),
        kept.values(),
        [c.flops for c in costs],
        [0] * len(nodes) if at_once else kept.grads(),
        [c.scratch for c in costs],
        [c.constants for c in costs],
        kept.beyond,
        loss,
        policy and keeping(costs, policy),
        choices(costs) if chooses else None,
        engine().KEPT_STAYS,
    )
    chain.ways = ways.ways_of(kept, costs)
    return chain
