"""What the layers of a subclassed model keep, from one abstract call.

Such a model has no graph. Its `call` runs once on abstract tensors, under an
observer that notes each call of a direct child; each is then profiled as a
node of a graph would be. What the model computes between its layers is not
seen, but for the values that layers get from it and keep.
"""

import collections
import contextlib
import threading

from keras.src import backend
from keras.src import tree
from keras.src.backend.common.masking import get_keras_mask
from keras.src.remat import profile
from keras.src.remat.profile_trace import Spec
from keras.src.remat.profile_trace import spec_bytes

CallCost = collections.namedtuple("CallCost", ["layer", "cost", "saved"])
CallCost.__doc__ = """One call of a layer.

Args:
    layer: The layer.
    cost: Its `NodeCost`.
    saved: Bytes of residuals, each value once: at the layer that made it, or
        at the first one that keeps it if the model's own code made it.
"""

Call = collections.namedtuple(
    "Call", ["layer", "arguments", "tensors", "specs", "outputs"]
)


def model_costs_by_call(model, specs, training=True, unprofiled=None):
    """The cost of each call of a direct child layer of a model.

    Args:
        model: A built model or layer, of any kind.
        specs: What its call takes first, with a `KerasTensor` without unknown
            dimensions for each tensor.
        training: Passed to the model. Defaults to `True`.
        unprofiled: List that names of layers are added to which could not be
            traced. Defaults to `None`.

    Returns:
        List of `CallCost`, in the order of the calls.
    """
    unprofiled = [] if unprofiled is None else unprofiled
    tree.map_structure(profile.spec_of, specs)  # Refuses unknown dimensions.
    calls = observed_calls(model, specs, training)
    costs = [
        profile.operation_cost(
            call.layer, fill_in_of(call), call.specs, training, unprofiled
        )[0]
        for call in calls
    ]
    saved = saved_once(calls, costs)
    return [CallCost(c.layer, *rest) for c, *rest in zip(calls, costs, saved)]


def observed_calls(model, specs, training):
    """Runs the model on abstract tensors and lists the calls of children."""
    children = model._flatten_layers(include_self=False, recursive=False)
    calls, data = [], set()
    context = {"training": training} if model._call_has_training_arg else {}

    def run(*leaves):
        data.update(id(x) for x in leaves)
        with observer({id(c) for c in children}, calls, data):
            return model(tree.pack_sequence_as(specs, leaves), **context)

    backend.compute_output_spec(run, *tree.flatten(specs))
    return calls


LOCK = threading.RLock()


@contextlib.contextmanager
def observer(children, calls, data):
    """Notes calls of layers in this thread, those within others left out."""
    from keras.src.layers.layer import Layer

    thread, inside = threading.get_ident(), []

    def call(layer, *args, **kwargs):
        ours = threading.get_ident() == thread and id(layer) in children
        if not ours or inside:
            return original(layer, *args, **kwargs)
        inside.append(layer)
        try:
            noted = note(layer, (args, kwargs), data)
            outputs = original(layer, *args, **kwargs)
        finally:
            inside.pop()
        calls.append(noted._replace(outputs=tree.flatten(outputs)))
        return outputs

    with LOCK:
        original = Layer.__call__
        Layer.__call__ = call
        try:
            yield
        finally:
            Layer.__call__ = original


def note(layer, arguments, data):
    tensors = {
        id(x): x for x in tree.flatten(arguments) if backend.is_tensor(x)
    }
    specs = [spec_of(x, id(x) not in data) for x in tensors.values()]
    return Call(layer, arguments, list(tensors.values()), specs, None)


def spec_of(x, differentiable):
    dtype = backend.standardize_dtype(x.dtype)
    mask = get_keras_mask(x)
    if mask is not None:
        mask = tuple(mask.shape), backend.standardize_dtype(mask.dtype)
    differentiable = differentiable and "float" in dtype
    return Spec(tuple(x.shape), dtype, differentiable, mask)


def fill_in_of(call):
    """A function that puts tensors in place of those of the noted call."""
    place = {id(x): i for i, x in enumerate(call.tensors)}

    def fill_in(given):
        return tree.map_structure(
            lambda x: given[place[id(x)]] if id(x) in place else x,
            call.arguments,
        )

    return fill_in


def saved_once(calls, costs):
    """Bytes of residuals of each call, no value counted twice."""
    maker, shares, seen = {}, {}, set()
    saved = [cost.saved_internal for cost in costs]
    for i, (call, cost) in enumerate(zip(calls, costs)):
        given = [shares.get(id(x), id(x)) for x in call.tensors]
        for x, alias, size in zip(
            call.outputs, cost.aliases, cost.output_bytes
        ):
            if alias is None:
                maker[id(x)] = (i, size)
            else:
                shares[id(x)] = given[alias]
        kept = [
            (given[k], spec_bytes(call.specs[k])) for k in cost.saves_inputs
        ]
        outputs = [id(call.outputs[k]) for k in cost.saves_outputs]
        kept += [(shares.get(key, key), 0) for key in outputs]
        for key, size in kept:
            if key not in seen:
                seen.add(key)
                at, size = maker.get(key, (i, size))
                saved[at] += size
    return saved
