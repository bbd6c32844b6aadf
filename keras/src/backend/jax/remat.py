"""Rematerialization on JAX: `jax.checkpoint` around a fresh function.

`jax.checkpoint` remembers its trace by function object, and with it the
values that the function closes over. Each call of a region therefore makes a
new function: what it closes over (variables above all) is read afresh, enters
the checkpoint as a hidden argument and gets its gradient.
"""

import contextlib
import functools
import threading

import jax
from jax._src.ad_checkpoint import name_p
from jax._src.core import trace_state_clean
from jax.ad_checkpoint import checkpoint_name

from keras.src.backend.common.remat_policy import NOTHING
from keras.src.backend.config import is_nnx_enabled
from keras.src.backend.jax.remat_offload import offloading
from keras.src.backend.jax.remat_tied import in_order  # noqa: F401
from keras.src.backend.jax.remat_tied import is_tie
from keras.src.backend.jax.remat_tied import tying


def checkpoint(run, inputs, policy=None):
    """Calls `run.first(*inputs)`, keeping only the inputs for the gradient.

    Args:
        run: A region's `Run`.
        inputs: List of tensors.
        policy: A `RematPolicy`, or `None` to keep nothing.

    Returns:
        The flat list of tensors that `run.first` returns.
    """
    keep = None if policy is None else keep_function(policy)

    def first(*inputs):
        with marked(policy), tying():
            return run.first(*inputs)

    return jax.checkpoint(first, policy=keep)(*inputs)


MARK = "remat_region_"
_open = threading.local()


@contextlib.contextmanager
def observed(policies):
    """Adds the policies of regions to a list, and marks what they compute.

    The name scope in the region of policy number `i` is `MARK` and `i`.
    """
    before = getattr(_open, "policies", None)
    _open.policies = policies
    try:
        yield
    finally:
        _open.policies = before


def marked(policy):
    """The name scope of a region while regions are observed."""
    policies = getattr(_open, "policies", None)
    if policies is None or policy is None:
        return contextlib.nullcontext()
    policies.append(policy)
    return jax.named_scope(f"{MARK}{len(policies) - 1}")


KINDS = {"dot_general": "matmul", "conv_general_dilated": "conv"}


def keep_function(policy):
    """A `RematPolicy` in the form that `jax.checkpoint` takes."""
    offloaded = offloading() if policy.offload else True

    def keep(primitive, *avals, **params):
        if is_tie(primitive, params):
            return False  # Or a kernel would be kept once more.
        name = params.get("name") if primitive is name_p else None
        op = "name" if name else KINDS.get(primitive.name, primitive.name)
        has_batch = op == "matmul" and bool(params["dimension_numbers"][1][0])

        @functools.cache
        def results():
            found = primitive.get_bind_params(params)
            # Older releases of JAX give functions in it apart.
            inner, found = found if isinstance(found, tuple) else ((), found)
            bind = lambda *args: primitive.bind(*inner, *args, **found)
            return jax.tree.leaves(jax.eval_shape(bind, *avals))

        def spec():
            out = results()
            return (tuple(out[0].shape), str(out[0].dtype)) if out else NOTHING

        kept = policy.keeps(op, has_batch, name, spec)
        # A named value or product is complex if what it is made of is.
        of_inputs = op == "name" or primitive.name in KINDS
        if kept and is_complex(avals if of_inputs else results()):
            return False
        return offloaded if kept and policy.offloads(name) else kept

    return keep


def is_complex(values):
    """Whether a value is complex; `jax.checkpoint` fails to keep such."""
    dtypes = [str(getattr(x, "dtype", "")) for x in values]
    return any(dtype.startswith("complex") for dtype in dtypes)


def name_value(x, name):
    return checkpoint_name(x, name)


def jit_options():
    """Options of `jax.jit` with which the trainer compiles its step.

    XLA:CPU deletes optimization barriers and then merges each second run with
    the first, so that nothing would be saved. GPU and TPU are left alone.
    """
    if is_nnx_enabled() or jax.default_backend() != "cpu":
        return {}
    return {"compiler_options": compiler_options()}


def compiler_options():
    """What keeps XLA:CPU from undoing rematerialization."""
    return {"xla_disable_hlo_passes": "cse_barrier_expander"}


def gradient_is_off():
    """Always `False`: nobody can switch gradients off."""
    return False


def records_gradient():
    """Whether a gradient may be taken of what runs now."""
    return not trace_state_clean()


def scan_time(run, f, state, sequences, count, backwards, all_outputs):
    """Runs a recurrence in `count` parts: one region, compiled once.

    Python loops of regions share no memory; what a `lax.scan` stacks would be
    copied twice, to put the batch first again. So parts are read from and
    written to whole sequences.

    Args:
        run: Calls a function with a list of arguments, as a region.
        f: Takes a part of the steps and a state, returns the last output,
            the outputs and the state.
        state: What the first part starts from.
        sequences: Arrays of shape `(batch, steps, ...)`.
        count: Divides the number of steps.
        backwards: Whether the last part comes first.
        all_outputs: Whether outputs have a step for each of those read; if
            not, the last part's are returned.

    Returns:
        The last output, the outputs and the state.
    """
    steps = jax.tree.leaves(sequences)[0].shape[1]
    size = steps // count

    def read(x, i):
        i = count - 1 - i if backwards else i
        return jax.lax.dynamic_slice_in_dim(x, i * size, size, axis=1)

    def write(all_steps, part, i):
        return write_once(all_steps, part, i * size) if all_outputs else part

    def at(i, state, sequences):
        # The part is read in the region, or all parts would be kept.
        return f(jax.tree.map(lambda x: read(x, i), sequences), state)

    def body(carry, i):
        state, _, outputs = carry
        last, new, state = run(at, (i, state, sequences))
        outputs = jax.tree.map(lambda x, y: write(x, y, i), outputs, new)
        return (state, last, outputs), None

    def empty(x):
        shape = (x.shape[0], steps, *x.shape[2:]) if all_outputs else x.shape
        return jax.numpy.zeros(shape, x.dtype)

    last, outputs, _ = jax.eval_shape(at, 0, state, sequences)
    last = jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), last)
    init = (state, last, jax.tree.map(empty, outputs))
    carry, _ = jax.lax.scan(body, init, jax.numpy.arange(count))
    state, last, outputs = carry
    return last, outputs, state


@jax.custom_jvp
def write_once(x, part, at):
    """Writes steps of `x` that are not written again.

    What was there before counts for nothing, so its gradient need not be
    cleared, which in a loop would copy all of it each time.
    """
    return jax.lax.dynamic_update_slice_in_dim(x, part, at, axis=1)


@write_once.defjvp
def write_tangent(values, tangents):
    size = values[1].shape[1]

    def write(at, given):
        return write_once(*given, at)

    def transpose(at, wanted):
        return wanted, jax.lax.dynamic_slice_in_dim(wanted, at, size, axis=1)

    linear = jax.custom_derivatives.linear_call
    tangent = linear(write, transpose, values[2], tuple(tangents[:2]))
    return write_once(*values), tangent


def is_input(x):
    """Whether `x` enters a region as a tensor; a concrete one is a constant."""
    return any(isinstance(v, jax.core.Tracer) for v in jax.tree.leaves(x))


def is_output(x):
    return isinstance(x, jax.Array) or is_input(x)


def read(variable, run):
    return variable._value


def waiting(value, run):
    """A seed that is not there before the inputs of the region are.

    XLA:CPU would begin the draws of all layers at the start of a step, and
    hold what they begin with until each layer runs.
    """
    inputs = [x for x in run.inputs or () if is_input(x)]
    if not inputs or not is_seed(value) or jax.default_backend() != "cpu":
        return value
    first = jax.lax.stop_gradient(inputs[0])
    return jax.lax.optimization_barrier((value, first))[0]


def is_seed(value):
    return value.dtype == jax.numpy.uint32 and value.shape == (2,)


def assigned(value, before):
    """The value that a variable has once `value` was assigned to it."""
    return value


def ordered(fn):
    """A layer's `call`, whose gradients are made in order anyway."""
    return fn


def check_reads(run):
    """Nothing to do: arrays never change."""


def is_early_stop(error):
    return False


@contextlib.contextmanager
def building(is_built=False):
    """Makes new variables concrete although a trace is open."""
    with jax.ensure_compile_time_eval():
        yield


def untraced(f, *args):
    return f(*args)
