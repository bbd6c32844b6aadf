"""What XLA holds in memory when it has compiled an operation.

A jaxpr says what is computed; these are rules for what of it becomes a buffer.
Cheap operations run in the loop of their reader, see also `remat_fused.py`.
On a CPU, kernels of convolutions are laid out anew, ahead of the step, and a
depthwise convolution takes its kernel's gradient from that of a dense one.
"""

import collections
import math

import jax

from keras.src.backend.jax.remat_values import SAME_BUFFER
from keras.src.backend.jax.remat_values import is_var
from keras.src.backend.jax.remat_values import jaxprs_in
from keras.src.backend.jax.remat_values import size

MATMULS = ("dot_general", "conv_general_dilated", "ragged_dot_general")
REGIONS = ("checkpoint", "remat", "remat2")
# What XLA does not fuse into the operation that reads it.
COSTLY = tuple(
    "arg cum dynamic_update_slice fft gather reduce scatter select_and sort "
    "while".split()
)


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


def peak(jaxpr, ignored, again=False):
    """Most bytes at once of what equations make, in order.

    Cheap operations run in the loop of their reader, as XLA fuses them. Where
    a region runs `again`, what its backward pass reads too is there in full.
    """
    roots, last, readers = shared_buffers(jaxpr), {}, {}
    roots.update(carried_in_place(jaxpr, roots))
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
        inside, region = widened(eqn), again or eqn.primitive.name in REGIONS
        if region or not is_cheap(eqn):
            for j in jaxprs_in(eqn.params):
                inside = max(inside, peak(j, j.outvars, region))
        most = max(most, live + inside)
        live -= sum(dying.pop(i, ()))
    return most


def carried_in_place(jaxpr, roots):
    """Maps what loops carry out to what they start from, if made for them."""
    made = {v for eqn in jaxpr.eqns for v in eqn.outvars}
    reads = collections.Counter(
        v for eqn in jaxpr.eqns for v in filter(is_var, eqn.invars)
    )
    found = {}
    for eqn in (e for e in jaxpr.eqns if e.primitive.name == "scan"):
        count = eqn.params["num_carry"]
        starts = eqn.invars[eqn.params["num_consts"] :][:count]
        for start, end in zip(starts, eqn.outvars):
            if is_var(start) and start in made and reads[start] == 1:
                root = roots.get(start, start)
                found[end] = found.get(root, root)
    return found


def fused(eqn, readers, again):
    if again and len(readers) > 1:
        return False
    return is_cheap(eqn) and all(map(runs_in_loop, readers))


def runs_in_loop(eqn):
    """Whether an equation takes its operands as they are being computed."""
    return is_cheap(eqn) or eqn.primitive.name.startswith("reduce_")


def is_cheap(eqn):
    """Whether an equation computes each element from few others."""
    inner = list(jaxprs_in(eqn.params))
    if inner:
        return eqn.primitive.name != "scan" and all(
            is_cheap(e) for j in inner for e in j.eqns
        )
    name = eqn.primitive.name
    return name not in MATMULS and not name.startswith(COSTLY)


def widened(eqn):
    """Bytes that XLA:CPU takes for a gradient beside what it is made of.

    The one of a depthwise kernel is taken from that of a dense one; where max
    pooling pads, it does so anew, and finds the maxima again.
    """
    if jax.default_backend() != "cpu":
        return 0
    if eqn.primitive.name == "select_and_scatter_add":
        y, x = (v.aval for v in eqn.invars[:2])
        shape = padded(eqn)
        again = math.prod(shape) + math.prod(y.shape)
        return again * x.dtype.itemsize if shape != list(x.shape) else 0
    groups = eqn.params.get("batch_group_count", 1)
    return 0 if groups == 1 else 2 * groups * size(eqn.outvars[0])


def layouts(jaxpr, variables):
    """Bytes of kernels of convolutions that XLA:CPU lays out anew.

    The backward pass reads them so; the copy is made ahead, unless a region
    delays it.
    """
    if jax.default_backend() != "cpu" or not convolves(jaxpr):
        return 0
    return sum(
        math.prod(v.shape) * jax.numpy.dtype(v.dtype).itemsize
        for v in variables
        if v.trainable and len(v.shape) > 2
    )


def constants(backward):
    """Bytes of indices that XLA:CPU makes ahead for max pooling.

    Its backward pass finds where each maximum was by them; there is one array
    for each dimension. As they depend on nothing, regions do not delay them.

    Returns:
        Pair: their bytes, and those of the indices of the maxima alone, which
        are all that stays after a plain forward run.
    """
    if jax.default_backend() != "cpu":
        return 0, 0
    pooled = [
        (eqn.invars[0].aval.shape, padded(eqn))
        for eqn in all_equations(backward)
        if eqn.primitive.name == "select_and_scatter_add"
    ]
    return (
        sum(4 * len(x) * math.prod(x) for _, x in pooled),
        sum(4 * len(y) * math.prod(y) for y, _ in pooled),
    )


def padded(eqn):
    """The shape of what is pooled, in which indices are of padding too."""
    sizes = eqn.invars[1].aval.shape
    return [n + sum(p) for n, p in zip(sizes, eqn.params["padding"])]


def convolves(jaxpr):
    names = (eqn.primitive.name for eqn in all_equations(jaxpr))
    return "conv_general_dilated" in names


def all_equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in(eqn.params):
            yield from all_equations(inner)
