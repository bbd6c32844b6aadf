"""Runs a graph of operations by regions.

A Functional or Sequential model (or any `keras.Function`) is a list of nodes
in a fixed order. A cut divides the list into segments; a segment that is
rematerialized runs as one region, whose inputs are the tensors that it reads
from outside and whose outputs are those that are needed after it.
"""

import collections
import functools

from keras.src import tree
from keras.src.backend.common import global_state
from keras.src.backend.common.remat_attributes import attributes
from keras.src.backend.common.remat_inference import in_inference
from keras.src.backend.common.remat_region import run_region
from keras.src.backend.common.remat_results import engine
from keras.src.backend.common.remat_unplanned import warn_unplanned
from keras.src.remat import nodes
from keras.src.remat import segments
from keras.src.remat.inherited import dividing
from keras.src.remat.inherited import open_regions
from keras.src.remat.inherited import scope_for
from keras.src.remat.structure import graph_of

Asked = collections.namedtuple(
    "Asked",
    ["graph", "scope", "segments", "depth", "training", "inherited"],
    defaults=[None, None, False, None],
)
Asked.__doc__ = """That the next run of a graph be by regions.

Args:
    graph: The `Function`.
    scope: The `RematScope` to follow.
    segments: Its segments, if the plan of a graph around it has them.
    depth: How many regions are open around it then.
    training: Whether it is in training.
    inherited: The scope that layers inherit from what is around the graph.
"""


def cut_call(model, fn, policy, explicit=False):
    """`fn`, the model's `call`, running the model's graph by regions.

    Args:
        model: The model.
        fn: Its `call`.
        policy: The `RematPolicy` to follow.
        explicit: Whether a model asks for that itself, and no scope.
            Defaults to `False`.

    Returns:
        A function with the arguments of `fn`.
    """
    if in_inference():
        return fn
    asked = Asked(
        graph_of(model), scope_for(policy, explicit), inherited=inherited()
    )

    @functools.wraps(fn)
    def call(*args, **kwargs):
        now = asked._replace(training=is_training(kwargs))
        with attributes(remat_graph=now):
            outputs = fn(*args, **kwargs)
            has_run = global_state.get_global_attribute("remat_graph") != now
        if policy.memory_budget is not None and not has_run:
            warn_unplanned(policy.seen, model)
        return outputs

    return call


def inherited():
    return global_state.get_global_attribute("remat_inherited")


def is_training(kwargs):
    """Whether a call says that it is training, or one around it does."""
    context = global_state.get_global_attribute("current_call_ctx")
    given = kwargs.get("training")
    return bool(getattr(context, "training", None) if given is None else given)


def applies(function):
    """Whether this run of the graph is by regions."""
    return is_asked(function) or nodes.has_marks(function)


def is_asked(function):
    asked = global_state.get_global_attribute("remat_graph")
    return asked is not None and asked.graph is function


def run(function, inputs, operation_fn):
    """Runs the graph like `Function._run_through_graph`, by regions.

    Args:
        function: The `Function`.
        inputs: Flat list of its inputs.
        operation_fn: Maps an operation to what is called in its place.

    Returns:
        The outputs, in the structure of `function`.
    """
    values = {id(x): y for x, y in zip(function.inputs, inputs)}
    if not is_asked(function):
        nodes.run_marked_graph(function, values, operation_fn)
        return outputs_of(function, values)

    asked = global_state.get_global_attribute("remat_graph")
    global_state.set_global_attribute("remat_graph", None)
    with attributes(remat_inherited=asked.inherited):
        run_asked(asked, inputs, values, operation_fn)
    return outputs_of(function, values)


def run_asked(asked, inputs, values, operation_fn):
    """Runs a graph by regions, and adds all that it makes to `values`."""
    function, scope, chosen, depth, training, _ = asked
    if chosen is None:
        depth = open_regions()
        chosen = engine().untraced(
            segments.segments_for, function, inputs, scope.policy, training
        )
    for segment in chosen:
        # Layers of a plain part make no regions by the model's setting.
        with attributes(remat_depth=depth + scope.levels):
            run_segment(segment, values, operation_fn, scope, depth)


def outputs_of(function, values):
    missing = [x for x in function.outputs if id(x) not in values]
    if missing:
        raise ValueError(
            "All outputs of a graph must be connected to the inputs that "
            f"are given. Received: outputs without a value: {missing}"
        )
    return tree.pack_sequence_as(
        function._outputs_struct, [values[id(x)] for x in function.outputs]
    )


def run_segment(segment, values, operation_fn, scope, depth):
    """Runs one segment and adds its results to `values`."""
    if segment.divided:
        with dividing(scope, depth, segment.divided):
            return nodes.run_nodes(segment, values, operation_fn)
    if segment.inside:
        asked = Asked(
            segment.graph,
            scope,
            segment.inside,
            depth,
            inherited=inherited(),
        )
        with attributes(remat_graph=asked):
            return nodes.run_nodes(segment, values, operation_fn)
    if not segment.remat:
        return nodes.run_nodes(segment, values, operation_fn)
    run_as_region(segment, values, operation_fn, scope, depth)


def run_as_region(segment, values, operation_fn, scope, depth):
    reads = [key for key in segment.reads if key in values]
    writes = []

    def f(given):
        inside = dict(zip(reads, given))
        if segment.inner:
            for inner in segment.inner:
                run_segment(inner, inside, operation_fn, scope, depth + 1)
        else:
            nodes.run_nodes(segment, inside, operation_fn)
        writes[:] = [key for key in segment.writes if key in inside]
        return [inside[key] for key in writes]

    policy = scope.policy
    if segment.keep is not None:
        policy = policy.replaced(keep=segment.keep)
    results = run_region(
        f,
        ([values[key] for key in reads],),
        policy=policy if policy.keeps_something() else None,
        name=segment.name,
    )
    values.update(zip(writes, results))
    nodes.drop(values, set().union(*segment.drops))
