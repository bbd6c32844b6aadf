"""What an operation keeps for its backward pass on JAX, from shapes alone.

The operation is traced as `jax.vjp` would run it. What the traced forward
returns beyond its results are the residuals; values that differ only in shape
share one buffer.
"""

import math

import jax

from keras.src.backend.common import standardize_dtype
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.jax.remat_values import SAME_BUFFER
from keras.src.backend.jax.remat_values import Program
from keras.src.backend.jax.remat_values import is_var
from keras.src.backend.jax.remat_values import jaxprs_in
from keras.src.backend.jax.remat_values import number
from keras.src.backend.jax.remat_values import size

# A compiled step whose weights are donated writes each new weight over the old
# one as soon as its gradient is there, so gradients do not pile up.
UPDATES_AT_ONCE = True
ORDERS_PLAIN_PARTS = True
# XLA computes with a kept product again in the backward pass.
KEPT_STAYS = True
# What a loss and its gradient take at once, over the size of the results.
LOSS_COPIES = 2
MATMULS = ("dot_general", "conv_general_dilated", "ragged_dot_general")
# Reading and writing memory, without arithmetic.
NO_ARITHMETIC = SAME_BUFFER.union(
    "broadcast_in_dim concatenate convert_element_type dynamic_slice "
    "dynamic_update_slice gather iota pad rev slice split transpose".split()
)
REGIONS = ("checkpoint", "remat", "remat2")
# What XLA does not fuse into the operation that reads it.
COSTLY = tuple(
    "arg cum dynamic_update_slice fft gather reduce scatter select_and sort "
    "while".split()
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
        them. `copies`: bytes of copies of weights made ahead.
    """
    specs = [jax.ShapeDtypeStruct(s, d) for s, d, _ in inputs]
    specs += [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
    wanted = [d for _, _, d in inputs] + [v.trainable for v in variables]
    wanted = [
        w and jax.numpy.issubdtype(s.dtype, jax.numpy.inexact)
        for w, s in zip(wanted, specs)
    ]

    def forward(*values):
        given = values[len(inputs) :]
        with StatelessScope(state_mapping=list(zip(variables, given))):
            return [jax.numpy.asarray(y) for y in call(values[: len(inputs)])]

    def run(*values):
        def of_wanted(*changed):
            changed = iter(changed)
            return forward(
                *(next(changed) if w else v for w, v in zip(wanted, values))
            )

        return jax.vjp(of_wanted, *(v for w, v in zip(wanted, values) if w))

    function = run if any(wanted) else lambda *values: (forward(*values), ())
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*specs)
    found, kept = describe(closed.jaxpr, len(inputs), len(shapes[0]))
    forward_peak = peak(closed.jaxpr, kept)
    found["scratch"] = max(forward_peak, backward_peak(*shapes))
    found["copies"] = copies(closed.jaxpr, variables)
    found["made"] = made(closed.jaxpr, len(shapes[0]))
    return found


def copies(jaxpr, variables):
    """Bytes of kernels of convolutions, which XLA:CPU lays out anew."""
    if jax.default_backend() != "cpu" or not convolves(jaxpr):
        return 0
    kernels = [v for v in variables if v.trainable and len(v.shape) > 2]
    return sum(
        math.prod(v.shape) * jax.numpy.dtype(v.dtype).itemsize for v in kernels
    )


def convolves(jaxpr):
    return any(
        eqn.primitive.name == "conv_general_dilated"
        or any(convolves(j) for j in jaxprs_in(eqn.params))
        for eqn in jaxpr.eqns
    )


def backward_peak(outputs, backward):
    """Bytes at once in the backward pass, beyond residuals."""
    if not backward:
        return 0
    arriving = [
        jax.ShapeDtypeStruct(y.shape, jax.dtypes.float0)
        if not jax.numpy.issubdtype(y.dtype, jax.numpy.inexact)
        else y
        for y in outputs
    ]
    jaxpr = jax.make_jaxpr(lambda f, y: f(y))(backward, arriving).jaxpr
    given = sum(map(size, jaxpr.invars[len(jaxpr.invars) - len(arriving) :]))
    return given + peak(jaxpr, ())


def describe(jaxpr, n_inputs, n_outputs):
    roots = shared_buffers(jaxpr)
    root = [roots.get(v, v) if is_var(v) else v for v in jaxpr.outvars]
    outputs, kept = jaxpr.outvars[:n_outputs], set()
    kept.update(v for v in root[n_outputs:] if is_var(v))
    arguments = list(jaxpr.invars[:n_inputs])
    ours = {v for v in root[:n_outputs] if is_var(v)}
    outside = {*jaxpr.invars, *jaxpr.constvars, *ours}
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
        "internal": sum(size(v) for v in kept if v not in outside),
        **arithmetic(jaxpr),
    }
    return found, kept


def shared_buffers(jaxpr):
    """Maps variables to the ones whose buffer they are."""
    roots = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in SAME_BUFFER:
            pairs = zip(eqn.outvars, eqn.invars)
        elif eqn.primitive.name == "convert_element_type":
            same = eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype
            pairs = zip(eqn.outvars, eqn.invars) if same else ()
        elif eqn.primitive.name in ("jit", "pjit", "closed_call"):
            pairs = through_call(eqn)
        else:
            continue
        for out, source in pairs:
            if is_var(source):
                roots[out] = roots.get(source, source)
    return roots


def through_call(eqn):
    inner = next(jaxprs_in(eqn.params))
    roots, seen = shared_buffers(inner), dict(zip(inner.invars, eqn.invars))
    pairs = []
    for out, v in zip(eqn.outvars, inner.outvars):
        if is_var(v):
            pairs.append((out, seen.setdefault(roots.get(v, v), out)))
    return pairs


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


def peak(jaxpr, ignored, again=False):
    """Most bytes at once of what equations make, in order.

    Cheap operations run in the loop of their reader, as XLA fuses them. Where
    a region runs `again`, what its backward pass reads too is there in full.
    """
    roots, last, readers = shared_buffers(jaxpr), {}, {}
    for i, eqn in enumerate(jaxpr.eqns):
        for v in filter(is_var, eqn.invars):
            last[roots.get(v, v)] = i
            readers.setdefault(roots.get(v, v), []).append(eqn)
    ends = {roots.get(v, v) for v in jaxpr.outvars if is_var(v)}
    for eqn in reversed(jaxpr.eqns if again else ()):
        if is_cheap(eqn):  # What it reads is there until it is read itself.
            outs = [roots.get(v, v) for v in eqn.outvars]
            until = max((last.get(v, 0) for v in outs), default=0)
            for v in filter(is_var, eqn.invars):
                last[roots.get(v, v)] = max(last[roots.get(v, v)], until)
    live = most = 0
    dying = {}
    for i, eqn in enumerate(jaxpr.eqns):
        for v in eqn.outvars:
            stays = v in ends
            if (
                v in roots
                or v in ignored
                or (not stays and fused(eqn, readers.get(v, ()), again))
            ):
                continue
            live += size(v)
            until = len(jaxpr.eqns) if stays else last.get(v, i)
            dying.setdefault(until, []).append(size(v))
        inside, region = 0, again or eqn.primitive.name in REGIONS
        if region or not is_cheap(eqn):
            inner = jaxprs_in(eqn.params)
            inside = max((peak(j, j.outvars, region) for j in inner), default=0)
        most = max(most, live + inside)
        live -= sum(dying.pop(i, ()))
    return most


def fused(eqn, readers, again):
    if again and len(readers) > 1:
        return False
    return is_cheap(eqn) and all(
        is_cheap(r) or r.primitive.name.startswith("reduce_") for r in readers
    )


def is_cheap(eqn):
    """Whether an equation computes each element from few others."""
    inner = list(jaxprs_in(eqn.params))
    if inner:
        return eqn.primitive.name != "scan" and all(
            is_cheap(e) for j in inner for e in j.eqns
        )
    name = eqn.primitive.name
    return name not in MATMULS and not name.startswith(COSTLY)


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


def skips_kept():
    """Whether what is kept need not run again."""
    return True


def free_memory():
    """Bytes free on the default device, or `None` if it cannot be told."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
