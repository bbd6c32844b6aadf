"""The values that a traced program makes on JAX, and what each is made of.

Calls are opened and loops are seen as one run of their body, so that a value
is found where it is made. Values that differ only in shape are one.
"""

import dataclasses
import math

import numpy as np
from jax.extend import core as jex_core

from keras.src.backend.common.remat_policy import NOTHING
from keras.src.backend.jax.remat import KINDS

SAME_BUFFER = frozenset(
    "copy copy_p expand_dims name optimization_barrier reduce_precision "
    "reshape squeeze".split()
)
CALLS = frozenset(
    "closed_call core_call custom_jvp_call custom_vjp_call "
    "custom_vjp_call_jaxpr jit pjit".split()
)
REGIONS = frozenset(["checkpoint", "remat", "remat2"])
OUTSIDE = -1  # What stands for constants and what comes in.


def is_var(v):
    return not isinstance(v, jex_core.Literal)


def size(v):
    dtype = getattr(v.aval, "dtype", None)
    if not isinstance(dtype, np.dtype):  # Random keys.
        return 0
    return math.prod(v.aval.shape) * dtype.itemsize


def jaxprs_in(params):
    for value in params.values():
        for x in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(x, jex_core.ClosedJaxpr):
                yield x.jaxpr
            elif isinstance(x, jex_core.Jaxpr):
                yield x


def called(eqn, calls=CALLS):
    """The jaxpr that an equation does nothing but call, or `None`."""
    inner = list(jaxprs_in(eqn.params))
    if eqn.primitive.name not in calls or len(inner) != 1:
        return None
    return inner[0] if len(inner[0].invars) == len(eqn.invars) else None


@dataclasses.dataclass
class Value:
    """What one equation makes.

    Args:
        eqn: The equation, or `None` for what a loop carries on.
        times: How often it runs.
        path: The name scopes around it.
        reads: List of numbers of values.
        names: List of the names that it was given.
    """

    eqn: object
    times: int
    path: str
    reads: list
    names: list = dataclasses.field(default_factory=list)

    @property
    def op(self):
        if self.eqn is None:
            return None
        name = self.eqn.primitive.name
        return KINDS.get(name, name)

    @property
    def has_batch(self):
        if self.op != "matmul":
            return False
        return bool(self.eqn.params["dimension_numbers"][1][0])

    @property
    def spec(self):
        if self.eqn is None or not self.eqn.outvars:
            return NOTHING
        aval = self.eqn.outvars[0].aval
        return tuple(getattr(aval, "shape", ())), str(
            getattr(aval, "dtype", "")
        )

    @property
    def bytes(self):
        outvars = () if self.eqn is None else self.eqn.outvars
        return self.times * sum(map(size, outvars))


class Program:
    """The values of a program by number, each after those it is made of.

    Args:
        jaxpr: The `Jaxpr`.

    Attributes:
        values: List of `Value`.
        place: Dict from the variables of `jaxpr` to numbers of values.
    """

    def __init__(self, jaxpr):
        self.values = []
        self.place = {}
        self.run(jaxpr, self.place, 1, "")

    def run(self, jaxpr, place, times, path):
        for eqn in jaxpr.eqns:
            inside = f"{path}/{eqn.source_info.name_stack}"
            inner = called(eqn, CALLS | REGIONS)
            reads = [number(place, v) for v in eqn.invars]
            if eqn.primitive.name == "scan":
                body = next(jaxprs_in(eqn.params))
                made = self.loop(eqn, body, reads, times, inside)
            elif inner is not None:
                within = dict(zip(inner.invars, reads))
                self.run(inner, within, times, inside)
                made = [number(within, v) for v in inner.outvars]
            elif is_same_buffer(eqn):
                made = reads
                self.name(eqn, reads[0])
            else:
                self.values.append(Value(eqn, times, inside, reads))
                made = [len(self.values) - 1] * len(eqn.outvars)
            place.update(zip(eqn.outvars, made))

    def name(self, eqn, value):
        if eqn.primitive.name == "name" and value != OUTSIDE:
            self.values[value].names.append(eqn.params["name"])

    def loop(self, eqn, body, reads, times, path):
        """Runs the body once; what it carries is read in the next step."""
        first = eqn.params["num_consts"]
        last = first + eqn.params["num_carry"]
        carried = []
        for read in reads[first:last]:
            self.values.append(Value(None, times, path, [read]))
            carried.append(len(self.values) - 1)
        given = [*reads[:first], *carried, *reads[last:]]
        within = dict(zip(body.invars, given))
        self.run(body, within, times * eqn.params["length"], path)
        made = [number(within, v) for v in body.outvars]
        for value, next_one in zip(carried, made):
            self.values[value].reads.append(next_one)
        return made


def number(place, v):
    return place.get(v, OUTSIDE) if is_var(v) else OUTSIDE


def is_same_buffer(eqn):
    name = eqn.primitive.name
    if name == "convert_element_type":
        return eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype
    return name in SAME_BUFFER
