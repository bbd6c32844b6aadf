"""`keras.remat`, also known as `keras.ops.remat`."""

import functools

from keras.src.api_export import keras_export
from keras.src.backend.common import remat_marks
from keras.src.backend.common import remat_region
from keras.src.backend.common.keras_tensor import any_symbolic_tensors
from keras.src.backend.common.remat_policy import get_policy
from keras.src.backend.common.remat_scope import without_scopes
from keras.src.backend.common.remat_setting import RematLayer
from keras.src.backend.common.remat_unplanned import check_no_budget


@keras_export(["keras.remat", "keras.ops.remat"])
def remat(f=None, *, policy=None):
    """Makes a function keep only its inputs, and run again for its gradient.

    A training step keeps the intermediate values of everything it computes
    until the backward pass has used them. A rematerialized function (one with
    gradient checkpointing) drops them, and computes them again when the
    backward pass needs them: less memory, for one more forward run of this
    function. Results, gradients, random draws and all state (seeds,
    normalization statistics, metrics) are those of the plain function.

    Wrap what a user thinks of as a block (a transformer block, a residual
    block). Around a single layer it rarely pays, since the input of the
    layer is kept.

    Args:
        f: Callable to rematerialize: a function, lambda, bound method or
            partial, with any nest of tensors and other values as arguments
            and results. A `keras.layers.Layer` or model gets its `remat`
            setting turned on, and is returned itself. Defaults to `None`:
            a decorator is returned.
        policy: A `keras.RematPolicy`, or a word for its `keep` such as
            `"matmuls"`: what the function keeps all the same. Defaults to
            `None`, keep nothing.

    Returns:
        A function with the name, signature and docstring of `f`, or `f`
        itself if it is a layer, or a decorator if `f` is not given.

    Raises:
        TypeError: If `f` is not callable.
        ValueError: If `policy` is neither, or has a `memory_budget` for a
            function, which has no graph to plan. In the backward pass, if the
            second run gives values of another structure, shape or dtype than
            the first.

    Note: the function runs twice, so it must do the same both times. Random
    draws of `keras.random` and of torch's own generator, and updates of
    `keras.Variable`s, are taken care of; Python state (a counter, a list that
    is appended to) is not.

    Example:

    ```python
    dense = keras.layers.Dense(32, activation="gelu")
    norm = keras.layers.LayerNormalization()

    @keras.remat
    def block(x):
        return x + norm(dense(x))

    y = block(keras.ops.ones((2, 32)))
    ```

    Reference:

    - [Training Deep Nets with Sublinear Memory Cost](
        https://arxiv.org/abs/1604.06174) (Chen et al., 2016)
    - On JAX by `jax.checkpoint`, on torch by the non-reentrant
      `torch.utils.checkpoint`, on TensorFlow by an own recorded operation.
    """
    if f is None:
        return functools.partial(remat, policy=policy)
    policy = get_policy(policy)
    if not callable(f):
        raise TypeError(
            "`keras.remat` wraps a function, layer or model. "
            f"Received: f={f} (of type {type(f)}). "
            "To rematerialize part of a computation, put it into a function."
        )
    if isinstance(f, RematLayer):
        f.remat = True if policy is None else policy
        return f
    check_no_budget(policy, "a function")

    inner = without_scopes(f)

    @functools.wraps(f, updated=())
    def rematerialized(*args, **kwargs):
        name = remat_region.name_of(f)
        if any_symbolic_tensors(args, kwargs):
            with remat_marks.recording(name, policy):
                return f(*args, **kwargs)
        return remat_region.run_region(inner, args, kwargs, policy, name)

    rematerialized._remat = (f, policy)
    return rematerialized


def vectorized_map(engine_map, function, elements):
    """Makes a region inside of an engine's map a region around the map.

    Engines that vectorize by rewriting a function cannot see regions in it.
    """
    f, policy = getattr(function, "_remat", (None, None))
    if f is None:
        return engine_map(function, elements)
    return remat_region.run_region(engine_map, (f, elements), None, policy)
