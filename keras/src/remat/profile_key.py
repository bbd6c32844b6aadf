"""What makes two calls of operations cost the same."""

import contextlib
import json
import sys
import threading
import types

from keras.src import backend
from keras.src.remat.profile_trace import Position
from keras.src.saving import serialization_lib

PLAIN = (type(None), bool, int, float, complex, str, bytes)


class CannotCompare(Exception):
    """Something has no key."""


def key_of(operation, arguments, specs, context):
    """A hashable key, or `None` if the call can not be told from others.

    Args:
        operation: An `Operation` or layer.
        arguments: Its `(args, kwargs)` with a `Position` for each tensor.
        specs: List of `Spec` of those tensors.
        context: Keyword arguments which it gets in addition.
    """
    try:
        return (
            backend.backend(),
            type(operation),
            config_of(operation),
            variables_of(operation),
            frozen(arguments),
            frozen(context),
            tuple(specs),
        )
    except CannotCompare:
        return None


def config_of(operation):
    """The configuration as JSON, without what does not matter.

    Without one, the operation itself: it equals no other.
    """
    try:
        with tensorflow_not_imported():
            config = operation.get_config()
        return json.dumps(nameless(config), sort_keys=True)
    except Exception:  # `get_config` is user code.
        return operation


LOCK = threading.RLock()


@contextlib.contextmanager
def tensorflow_not_imported():
    """Keeps the serialization from importing TensorFlow, which takes seconds.

    Where it is not imported, nothing to serialize can be of one of its types.
    """
    if "tensorflow" in sys.modules:
        yield
        return
    with LOCK:
        original = serialization_lib.tf
        serialization_lib.tf = types.SimpleNamespace(available=False)
        try:
            yield
        finally:
            serialization_lib.tf = original


def nameless(x):
    """Without names, and with all seeds that are set alike."""
    if isinstance(x, dict):
        return {
            k: isinstance(v, int) if k == "seed" else nameless(v)
            for k, v in x.items()
            if k != "name"
        }
    if isinstance(x, (list, tuple)):
        return [nameless(v) for v in x]
    return x


def variables_of(operation):
    """Sublayers can be frozen, and shapes depend on how it was built."""
    return tuple(
        (tuple(v.shape), v.dtype, v.trainable)
        for v in getattr(operation, "variables", ())
    )


def frozen(x):
    """A hashable form of call arguments."""
    if isinstance(x, PLAIN):
        return type(x).__name__, x
    if isinstance(x, Position):
        return "tensor", x.index
    if isinstance(x, (list, tuple)):
        return type(x).__name__, tuple(frozen(v) for v in x)
    if isinstance(x, dict):
        return "dict", tuple((k, frozen(v)) for k, v in sorted(x.items()))
    if isinstance(x, slice):
        return "slice", frozen((x.start, x.stop, x.step))
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return "constant", str(x.shape), str(x.dtype)
    if callable(x) or isinstance(x, type(Ellipsis)):
        return "object", x
    raise CannotCompare
