"""What an operation keeps for its backward pass on JAX, from shapes alone.

The operation is traced as `jax.vjp` would run it. What the traced forward
returns beyond its results are the residuals; values that differ only in shape
share one buffer.
"""

import math

import jax

from keras.src.backend.common import standardize_dtype
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.jax.remat_compiled import MATMULS
from keras.src.backend.jax.remat_compiled import constants
from keras.src.backend.jax.remat_compiled import layouts
from keras.src.backend.jax.remat_compiled import peak
from keras.src.backend.jax.remat_compiled import shared_buffers
from keras.src.backend.jax.remat_fused import beyond_residuals
from keras.src.backend.jax.remat_twice import product_outputs
from keras.src.backend.jax.remat_twice import sums_inputs
from keras.src.backend.jax.remat_values import SAME_BUFFER
from keras.src.backend.jax.remat_values import Program
from keras.src.backend.jax.remat_values import is_var
from keras.src.backend.jax.remat_values import jaxprs_in
from keras.src.backend.jax.remat_values import number
from keras.src.backend.jax.remat_values import size

# A compiled step whose weights are donated writes each new weight over the old
# one as soon as its gradient is there, so gradients do not pile up.
UPDATES_AT_ONCE = True
STEPS_ALIKE = True
# XLA computes with a kept product again in the backward pass.
KEPT_STAYS = True
# What a loss and its gradient take at once, over the size of the results.
LOSS_COPIES = 2
# Reading and writing memory, without arithmetic.
NO_ARITHMETIC = SAME_BUFFER.union(
    "broadcast_in_dim concatenate convert_element_type dynamic_slice "
    "dynamic_update_slice gather iota pad rev slice split transpose".split()
)


def trace(call, inputs, variables):
    """Runs `call` on abstract tensors, as the forward run of training.

    Args:
        call: Takes a list of tensors, returns a flat list of tensors.
        inputs: List of `(shape, dtype, differentiable)`.
        variables: The Keras variables that `call` reads or writes.

    Returns:
        Dict. `outputs`: list of `(shape, dtype, bytes)`. `aliases`: for each
        output the input that it shares memory with, or `None`. `saved_inputs`
        and `saved_outputs`: indices of those that the backward pass reads;
        `internal`: bytes of all else that it reads but for variables.
        `flops`: arithmetic of the forward run. `matmuls`: bytes of the results
        of matrix products and convolutions. `scratch`: bytes that are there
        only while the forward or the backward pass runs, gradients among
        them. `beyond`: bytes that are held with the residuals, or less of
        them. `constants`, `sums_inputs`, `products` and `remade`:
        see `NodeCost`.
    """
    specs = [jax.ShapeDtypeStruct(s, d) for s, d, _ in inputs]
    specs += [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
    wanted = [d for _, _, d in inputs] + [v.trainable for v in variables]
    wanted = [
        w and jax.numpy.issubdtype(s.dtype, jax.numpy.inexact)
        for w, s in zip(wanted, specs)
    ]

    forward = forward_of(call, len(inputs), variables)
    function = lambda *values: (forward(*values), ())
    if any(wanted):
        function = linearized(forward, wanted)
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*specs)
    found, kept, internal = describe(closed.jaxpr, len(inputs), len(shapes[0]))
    found["scratch"] = peak(closed.jaxpr, kept)
    found["beyond"] = layouts(closed.jaxpr, variables)
    found["sums_inputs"] = sums_inputs(closed.jaxpr, len(inputs))
    found["products"] = product_outputs(closed.jaxpr, len(shapes[0]))
    found["made"] = made(closed.jaxpr, len(shapes[0]))
    if any(wanted):
        backward, arriving = backward_of(*shapes)
        back = arriving + peak(backward, ())
        found["scratch"] = max(found["scratch"], back)
        found["constants"], indices = constants(backward)
        given = closed.jaxpr.invars[: len(inputs)]
        weights = closed.jaxpr.invars[len(inputs) :]
        less, of_input = beyond_residuals(
            closed.jaxpr, backward, internal, weights, len(shapes[0])
        )
        found["beyond"] += less + indices
        found["remade"] = {
            i: of_input[v] for i, v in enumerate(given) if v in of_input
        }
    return found


def forward_of(call, n_inputs, variables):
    """`call` as a function of its inputs and of the values of variables."""

    def forward(*values):
        given = values[n_inputs:]
        with StatelessScope(state_mapping=list(zip(variables, given))):
            return [jax.numpy.asarray(y) for y in call(values[:n_inputs])]

    return forward


def linearized(forward, wanted):
    """`forward`, which also returns its backward pass for what is wanted."""

    def run(*values):
        def of_wanted(*changed):
            changed = iter(changed)
            return forward(
                *(next(changed) if w else v for w, v in zip(wanted, values))
            )

        return jax.vjp(of_wanted, *(v for w, v in zip(wanted, values) if w))

    return run


def backward_of(outputs, backward):
    """The jaxpr of the backward pass, and bytes of what arrives there."""
    arriving = [
        jax.ShapeDtypeStruct(y.shape, jax.dtypes.float0)
        if not jax.numpy.issubdtype(y.dtype, jax.numpy.inexact)
        else y
        for y in outputs
    ]
    jaxpr = jax.make_jaxpr(lambda f, y: f(y))(backward, arriving).jaxpr
    given = sum(map(size, jaxpr.invars[len(jaxpr.invars) - len(arriving) :]))
    return jaxpr, given


def describe(jaxpr, n_inputs, n_outputs):
    roots = shared_buffers(jaxpr)
    root = [roots.get(v, v) if is_var(v) else v for v in jaxpr.outvars]
    outputs, kept = jaxpr.outvars[:n_outputs], set()
    kept.update(v for v in root[n_outputs:] if is_var(v))
    arguments = list(jaxpr.invars[:n_inputs])
    ours = {v for v in root[:n_outputs] if is_var(v)}
    internal = kept - {*jaxpr.invars, *jaxpr.constvars, *ours}
    found = {
        "outputs": [
            (v.aval.shape, standardize_dtype(v.aval.dtype), size(v))
            for v in outputs
        ],
        "aliases": [
            arguments.index(v) if is_var(v) and v in arguments else None
            for v in root[:n_outputs]
        ],
        "saved_inputs": [i for i, v in enumerate(arguments) if v in kept],
        "saved_outputs": [
            i for i, v in enumerate(root[:n_outputs]) if is_var(v) and v in kept
        ],
        "internal": sum(map(size, internal)),
        **arithmetic(jaxpr),
    }
    return found, kept, internal


def arithmetic(jaxpr):
    found = {"flops": 0, "matmuls": 0}
    for eqn in jaxpr.eqns:
        for key, value in of_equation(eqn).items():
            found[key] += value
    return found


def of_equation(eqn):
    name = eqn.primitive.name
    inner = [arithmetic(j) for j in jaxprs_in(eqn.params)]
    if not inner:
        made = sum(size(v) for v in eqn.outvars) if name in MATMULS else 0
        return {"flops": flops(eqn), "matmuls": made}
    if name == "cond":
        inner = [max(inner, key=lambda x: x["flops"])]
    times = eqn.params["length"] if name == "scan" else 1
    return {k: times * sum(x[k] for x in inner) for k in inner[0]}


def made(jaxpr, n_outputs):
    """What policies choose from, see `Made` in `profile_policy.py`."""
    program = Program(jaxpr)
    values = [
        (
            v.op,
            v.has_batch,
            tuple(v.names),
            *v.spec,
            v.bytes,
            0 if v.eqn is None else v.times * of_equation(v.eqn)["flops"],
            tuple(v.reads),
        )
        for v in program.values
    ]
    ends = [number(program.place, v) for v in jaxpr.outvars]
    return values, ends[n_outputs:], ends[:n_outputs]


def flops(eqn):
    name = eqn.primitive.name
    if name in NO_ARITHMETIC:
        return 0
    out = math.prod(getattr(eqn.outvars[0].aval, "shape", ()))
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        return 2 * out * math.prod(shape[i] for i in contracted)
    if name == "conv_general_dilated":
        return conv_flops(eqn, out)
    if name.startswith(("reduce_", "arg", "cum", "sort")):
        return math.prod(eqn.invars[0].aval.shape)
    return out


def conv_flops(eqn, out):
    """Two per tap: not those that dilation fills with zeros."""
    kernel = eqn.invars[1].aval.shape
    dims = eqn.params["dimension_numbers"].rhs_spec
    taps = math.prod(kernel[i] for i in dims[1:])
    return 2 * out * taps // math.prod(eqn.params["lhs_dilation"])


def free_memory():
    """Bytes free on the default device, or `None` if it cannot be told."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
