"""`RematPolicy`: what a region keeps, and how a model is cut into regions."""

import functools
import warnings
import weakref

import numpy as np

from keras.src.api_export import keras_export
from keras.src.backend.common.remat_checks import KEEP_WORDS
from keras.src.backend.common.remat_checks import check_budget
from keras.src.backend.common.remat_checks import check_count
from keras.src.backend.common.remat_checks import check_keep
from keras.src.backend.common.remat_checks import check_offload
from keras.src.backend.common.remat_checks import function_name


@keras_export("keras.RematPolicy")
class RematPolicy:
    """Decides what rematerialization keeps for the backward pass, and where.

    By default a region keeps nothing but its inputs: least memory, one more
    forward run. A policy keeps what is dear to compute and cheap to hold.

    Args:
        keep: What a region keeps besides its inputs. One of:
            - `"nothing"`: least memory.
            - `"matmuls"`: results of matrix products, einsums, convolutions
              and fused attention, so that none of them runs twice.
            - `"matmuls_no_batch"`: the same without products that have a
              batch dimension on both sides (attention scores).
            - A list of names given by `keras.ops.remat_name`, such as
              `["dense/linear"]`, which layers give themselves.
            - A function of `(op_name, value_name, shape, dtype)` that returns
              a bool. `value_name` is `None` for an untagged value.
            Defaults to `"nothing"`.
        offload: Whether kept values wait in the memory of the host. Either a
            bool or a list of names given by `keras.ops.remat_name`. Defaults
            to `False`.
        memory_budget: What a training step may need beyond weights and batch,
            for a Functional or Sequential model: bytes as an integer, a
            string such as `"2GiB"`, a float between 0 and 1 (a share of the
            plain peak) or `"auto"`, what the device has free. Defaults to
            `None`: no budget, least memory at one more forward run.
        every: Only each `every`-th unit becomes a region. Defaults to `1`.
        levels: How deep regions nest in regions. Each level costs one more
            forward run and lowers the memory. Defaults to `1`.

    Raises:
        ValueError: If an argument is none of the above.

    Example:

    >>> policy = keras.RematPolicy(keep="matmuls")
    >>> layer = keras.layers.Dense(8, activation="gelu", remat=policy)
    >>> layer.remat.keep
    'matmuls'
    """

    def __init__(
        self,
        keep="nothing",
        offload=False,
        memory_budget=None,
        every=1,
        levels=1,
    ):
        self.keep = check_keep(keep)
        self.offload = check_offload(offload)
        self.memory_budget = check_budget(memory_budget)
        self.every = check_count("every", every)
        self.levels = check_count("levels", levels)
        self.seen = Names()

    def replaced(self, **arguments):
        """This policy with other arguments; both know the same names."""
        given = {name: getattr(self, name) for name in DEFAULTS}
        policy = RematPolicy(**{**given, **arguments})
        policy.seen = self.seen
        return policy

    def __or__(self, other):
        """A policy that keeps what either of the two keeps."""
        if not isinstance(other, RematPolicy):
            return NotImplemented
        return RematPolicy(
            keep=(*self.parts(), *other.parts()),
            offload=join_offload(self.offload, other.offload),
            memory_budget=self.memory_budget or other.memory_budget,
            every=max(self.every, other.every),
            levels=max(self.levels, other.levels),
        )

    def parts(self):
        """The alternatives of `keep`: words, names and functions."""
        return self.keep if isinstance(self.keep, tuple) else (self.keep,)

    def keeps_something(self):
        return self.keep != "nothing" or bool(self.offload)

    def keeps(self, op, has_batch=False, name=None, spec=None):
        """Whether a value is kept.

        Args:
            op: What makes it: `"matmul"`, `"conv"`, `"attention"`, `"name"`,
                or else the engine's name for the operation.
            has_batch: Whether a product has batch dimensions on both sides.
                Defaults to `False`.
            name: The name it was given. Defaults to `None`.
            spec: Function that returns its shape and dtype, or `NOTHING`.
                Defaults to `None`.

        Returns:
            A bool.
        """
        if name is not None and isinstance(self.offload, list):
            if name in self.offload:
                return True
        return any(
            self.part_keeps(part, op, has_batch, name, spec)
            for part in self.parts()
        )

    def keeps_value(self, op, has_batch, names, spec):
        """Whether a value with these names is kept, in any way.

        Args:
            op: What made it; `None` for what can be kept by name only.
            has_batch: See `keeps`.
            names: The names it was given.
            spec: See `keeps`.

        Returns:
            A bool.
        """
        if op is not None and self.keeps(op, has_batch, None, spec):
            return True
        return any(self.keeps("name", False, name, spec) for name in names)

    def part_keeps(self, part, op, has_batch, name, spec):
        if part == "nothing":
            return False
        if part == "matmuls":
            return op in ("matmul", "conv", "attention")
        if part == "matmuls_no_batch":
            return op in ("matmul", "conv") and not has_batch
        if isinstance(part, str):
            return name == part
        shape, dtype = spec()
        if (shape, dtype) == NOTHING:
            return False
        try:
            kept = part(op, name, shape, dtype)
        except Exception as e:
            e.add_note(f"(in the `keep` function {function_name(part)})")
            raise
        if isinstance(kept, (bool, np.bool_)):
            return bool(kept)
        raise ValueError(
            "A `keep` function must return a bool. Received: "
            f"{function_name(part)} returned {kept!r} (of type {type(kept)})"
        )

    def offloads(self, name):
        """Whether a kept value waits in the memory of the host."""
        if isinstance(self.offload, list):
            return name in self.offload
        return self.offload

    def label(self, op, names=()):
        """What tables call a kept value: one of its names, or what made it."""
        asked = [n for n in names if n in self.names()]
        return (asked or [*names, op])[0]

    def names(self):
        """The names of values that the policy keeps or offloads."""
        names = [p for p in self.parts() if isinstance(p, str)]
        names = [n for n in names if n not in KEEP_WORDS]
        return names + (self.offload if isinstance(self.offload, list) else [])

    def warn_unseen(self):
        """Says once which names no value had, after all regions ran."""
        names = self.names()
        missing = sorted(set(names) - self.seen)
        if missing:
            warnings.warn(
                "No value had some of the names that a `RematPolicy` keeps, "
                "so they had no effect. Give names by "
                "`keras.ops.remat_name(x, name)`, whose docstring lists those "
                f"that layers give. Not found: {missing}",
                stacklevel=2,
            )
        self.seen.update(names)

    def get_config(self):
        from keras.src.saving import serialization_lib

        keep = self.keep
        if isinstance(keep, tuple) or callable(keep):
            keep = serialization_lib.serialize_keras_object(
                list(self.parts()) if isinstance(keep, tuple) else keep
            )
        return {
            "keep": keep,
            "offload": self.offload,
            "memory_budget": self.memory_budget,
            "every": self.every,
            "levels": self.levels,
        }

    @classmethod
    def from_config(cls, config):
        from keras.src.saving import serialization_lib

        config = dict(config)
        if isinstance(config.get("keep"), (dict, list)):
            config["keep"] = serialization_lib.deserialize_keras_object(
                config["keep"]
            )
        policy = cls(**config)
        # Each layer of a loaded model has a copy of its policy.
        policy.seen = LOADED.setdefault(policy.key(), policy.seen)
        return policy

    def key(self):
        """A hashable form, for caches."""
        offload = self.offload
        return (
            self.parts(),
            offload if isinstance(offload, bool) else tuple(offload),
            self.memory_budget,
            self.every,
            self.levels,
        )

    def __eq__(self, other):
        return isinstance(other, RematPolicy) and self.key() == other.key()

    def __hash__(self):
        return hash(self.key())

    def __repr__(self):
        shown = {k: getattr(self, k) for k in DEFAULTS}
        shown = {k: v for k, v in shown.items() if v != DEFAULTS[k]}
        words = ", ".join(f"{k}={v!r}" for k, v in shown.items())
        return f"RematPolicy({words})"


class Names(set):
    """A set that can be referred to weakly."""


# The shape and dtype of what has no results: it is not asked about.
NOTHING = (), ""
LOADED = weakref.WeakValueDictionary()
DEFAULTS = {
    "keep": "nothing",
    "offload": False,
    "memory_budget": None,
    "every": 1,
    "levels": 1,
}


def join_offload(a, b):
    if a is True or b is True:
        return True
    return [*(a or []), *(b or [])] or False


@functools.cache
def warn_not_offloaded(device):
    """Says once that nothing is offloaded from a device."""
    warnings.warn(
        "This device has no separate memory of the host, so values that a "
        f"`RematPolicy` offloads are kept where they are. Device: {device}"
    )


def get_policy(value, argument="policy"):
    """Makes a `RematPolicy` of a policy, its config, or a word for `keep`."""
    if value is None or isinstance(value, RematPolicy):
        return value
    if isinstance(value, str):
        return RematPolicy(keep=value)
    if isinstance(value, dict):
        config = value.get("config", value)
        if config.keys() <= DEFAULTS.keys():
            return RematPolicy.from_config(config)
    raise ValueError(
        f"`{argument}` must be a `keras.RematPolicy`, its config, or one of "
        f"{', '.join(map(repr, KEEP_WORDS))}. "
        f"Received: {argument}={value!r} (of type {type(value)})"
    )
