"""What a remat setting does to the call of an operation, layer or model."""

import contextlib
import copy
import functools
import math

from keras.src import tree
from keras.src.backend.common import global_state
from keras.src.backend.common import remat
from keras.src.backend.common.keras_tensor import KerasTensor
from keras.src.backend.common.keras_tensor import any_symbolic_tensors
from keras.src.backend.common.remat_attributes import attributes
from keras.src.backend.common.remat_inference import in_inference
from keras.src.backend.common.remat_inference import said_to_be_inference
from keras.src.backend.common.remat_later import warn_later
from keras.src.backend.common.remat_results import engine
from keras.src.backend.common.remat_scope import RematScope
from keras.src.backend.common.remat_scope import setting_of
from keras.src.backend.common.remat_scope import without_scopes
from keras.src.backend.common.remat_unplanned import warn_unplanned
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.remat import graph
from keras.src.remat import recurrent
from keras.src.remat.inherited import inheriting
from keras.src.remat.inherited import open_regions
from keras.src.remat.inherited import scope_for
from keras.src.remat.specs import as_spec
from keras.src.remat.structure import graph_of
from keras.src.remat.structure import holds_blocks
from keras.src.remat.structure import runs_graph


def wrap_call(op, fn, args, kwargs):
    """`fn` itself, or `fn` as the setting of `op` wants it to run.

    Args:
        op: The operation, layer or model that is being called.
        fn: Its `call` or `quantized_call`.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.

    Returns:
        A function with the arguments of `fn`.
    """
    fn = engine().ordered(fn)
    setting = setting_of(op)
    if setting is None or in_symbolic_scope() or said_to_be_inference():
        return fn
    if any_symbolic_tensors(args, kwargs):
        return fn
    if not isinstance(setting, RematScope):
        return by_policy(op, fn, setting)
    if setting.mode is None:  # the operation's own setting
        return inheriting(fn, setting)
    if is_model(op):
        return model_in_scope(op, fn, setting)
    warn_later(setting.warn_unmatched)
    if open_regions() >= setting.levels:
        setting.note(op)
        return fn
    if not chosen(setting, op, args, kwargs):
        return fn
    if setting.mode == "activations":
        return rematerialized_activation(op, fn)
    if takes_all(setting) and holds_blocks(op):
        return inheriting(fn, setting)
    if not next_unit(setting, op):
        # The parts of a unit that stays plain are no units.
        return without_scopes(fn) if takes_all(setting) else fn
    if has_recurrent_parts(op):
        return inheriting(fn, setting)
    if not setting.explicit:  # else the model that asked was warned of
        note_unplanned(op, setting.as_policy(), setting.matched)
    return region(op, fn, setting.as_policy())


def note_unplanned(op, policy, noted):
    """Warns of a budget for what no plan holds."""
    planned = global_state.get_global_attribute("remat_share") is not None
    if policy.memory_budget is not None and not planned:
        if not in_inference():
            warn_unplanned(noted, op)


def chosen(scope, op, args, kwargs):
    has_type = scope.has_type(op)
    if scope.mode == "list_of_layers":
        return scope.names(op) and has_type
    if not has_type:
        return False
    if scope.mode == "larger_than":
        size = output_size(op, args, kwargs)
        return size > scope.output_size_threshold
    return True


def by_policy(op, fn, policy):
    """The operation's own setting: always followed, also in a region."""
    if not is_model(op) and not has_recurrent_parts(op):
        return region(op, fn, policy)
    if graph_of(op) is not None:
        fn = graph.cut_call(op, fn, policy, explicit=True)
        if runs_graph(op):
            return fn
    else:
        note_unplanned(op, policy, policy.seen)
    # A call of a model's own may run its graph, or its layers by themselves.
    return inheriting(
        fn, scope_for(policy, explicit=True, depth=open_regions())
    )


def model_in_scope(model, fn, scope):
    """A model is a unit only if it is named; else its parts are."""
    if scope.mode == "list_of_layers" and scope.names(model):
        if open_regions() >= scope.levels:
            return fn
        return region(model, fn, scope.as_policy())
    if takes_all(scope) and graph_of(model) is not None:
        if open_regions() >= scope.levels:
            return fn
        return graph.cut_call(model, fn, scope.as_policy(), scope.explicit)
    if takes_all(scope) and not scope.explicit:
        note_unplanned(model, scope.as_policy(), scope.matched)
    return inheriting(fn, scope)


def takes_all(scope):
    """Whether a scope leaves the choice of units to us."""
    return scope.mode == "full" and scope.layer_types is None


def has_recurrent_parts(op):
    """Whether a layer is made of layers that loop over time."""
    inside = getattr(op, "forward_layer", None)
    return inside is not None and recurrent.loops_over_time(inside)


def region(op, fn, policy):
    """`fn` as a region, in which no scope makes another one."""
    if recurrent.loops_over_time(op):
        if in_inference():
            return fn
        return without_scopes(recurrent.call_in_parts(op, fn, policy))
    wrap = remat.remat
    if policy.keeps_something():
        wrap = functools.partial(wrap, policy=policy)
    return recurrent.with_dropout_masks(op, fn, wrap)


def rematerialized_activation(layer, fn):
    """Swaps the layer's activation function while the layer runs."""
    activation = getattr(layer, "activation", None)
    if not callable(activation) or not can_set(layer, "activation"):
        return fn

    @functools.wraps(fn)
    def call(*args, **kwargs):
        with attributes(remat_depth=open_regions() + 1):
            if is_layer(activation):
                with own_setting(activation, True):
                    return fn(*args, **kwargs)
            layer.activation = remat.remat(activation)
            try:
                return fn(*args, **kwargs)
            finally:
                layer.activation = activation

    return call


def can_set(layer, name):
    attribute = getattr(type(layer), name, None)
    return not isinstance(attribute, property) or attribute.fset is not None


def is_layer(x):
    from keras.src.layers.layer import Layer

    return isinstance(x, Layer)


def is_model(op):
    from keras.src.models.model import Model

    return isinstance(op, Model)


@contextlib.contextmanager
def own_setting(layer, value):
    before = layer.remat
    layer.remat = value
    try:
        yield
    finally:
        layer.remat = before


def next_unit(scope, op):
    """Counts units; whether this one is to be a region."""
    count = global_state.get_global_attribute("remat_units")
    if count is None:
        count = scope.units
    count[0] += 1
    if (count[0] - 1) % scope.every:
        return False
    if recurrent.loops_over_time(op) or has_recurrent_parts(op):
        return True  # A share of its steps is.
    share = global_state.get_global_attribute("remat_share") or 1
    return math.floor(count[0] * share) > math.floor((count[0] - 1) * share)


SIZES = "_remat_output_sizes"


def output_size(op, args, kwargs):
    """Number of output elements for these inputs, inferred once per shape."""
    specs = tree.map_structure(as_spec, (args, kwargs))
    leaves = tree.flatten(specs)
    key = tuple(
        x.shape if isinstance(x, KerasTensor) else repr(x) for x in leaves
    )
    sizes = vars(op).setdefault(SIZES, {})
    if key not in sizes:
        context = global_state.get_global_attribute("current_call_ctx")
        with attributes(current_call_ctx=copy.copy(context)):
            outputs = op.compute_output_spec(*specs[0], **specs[1])
        sizes[key] = sum(
            elements(x)
            for x in tree.flatten(outputs)
            if isinstance(x, KerasTensor)
        )
    return sizes[key]


def elements(x):
    """Number of elements of a tensor; an unknown dimension counts as one."""
    return math.prod(1 if d is None else int(d) for d in x.shape)
