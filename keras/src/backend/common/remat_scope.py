"""`RematScope`: which layers are rematerialized, and which setting wins."""

import fnmatch
import functools
import warnings
import weakref
from collections import namedtuple

from keras.src.api_export import keras_export
from keras.src.backend.common import global_state
from keras.src.backend.common import remat_later
from keras.src.backend.common.remat_attributes import AGAIN
from keras.src.backend.common.remat_attributes import attributes
from keras.src.backend.common.remat_checks import check_budget
from keras.src.backend.common.remat_checks import check_count
from keras.src.backend.common.remat_policy import Names
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_policy import get_policy
from keras.src.backend.common.remat_scope_checks import check_names
from keras.src.backend.common.remat_scope_checks import check_planned
from keras.src.backend.common.remat_scope_checks import check_threshold
from keras.src.backend.common.remat_scope_checks import check_types

LOADED = weakref.WeakValueDictionary()
MODES = ("full", "activations", "larger_than", "list_of_layers", None)

RematMode = namedtuple(
    "RematMode", ["mode", "output_size_threshold", "layer_names"]
)


@keras_export("keras.RematScope")
class RematScope:
    """Rematerializes the layers that are created or called in it.

    The backward pass then computes their intermediate values again instead
    of keeping them: less memory, at most one more forward run. Numbers stay
    the same. A layer that is created in the scope remembers it, also when it
    is saved. A layer or model that is called in the scope follows it too, so
    that `with keras.RematScope(): model.fit(...)` works on any model.

    A layer's own setting (`layer.remat`) wins over the innermost scope at
    call, and that one over the scope that the layer was created in.

    Args:
        mode: What is rematerialized. One of:
            - `"full"`: everything, for least memory. A model that is a graph
              of layers is cut into regions where the fewest bytes cross. Of
              other models each direct child layer is a region.
            - `"list_of_layers"`: layers that `layer_names` names.
            - `"larger_than"`: layers with more output elements than
              `output_size_threshold`, the batch included.
            - `"activations"`: only the activation function of layers that
              have one. This saves memory if the function keeps more than its
              own input (`"gelu"`, `"swish"`), and nothing for `"relu"`.
            - `None`: nothing; switches an outer scope off.
            Defaults to `"full"`.
        output_size_threshold: Integer, a number of elements. Defaults to
            `1024`.
        layer_names: List of strings: names or paths of layers, or
            `fnmatch` patterns for them such as `"block_*"`; followed in mode
            `"list_of_layers"` only. Defaults to `None`.
        layer_types: Layer classes or names of classes; only layers of these
            types become regions, each by itself. Defaults to `None`, all.
        every: Only each `every`-th unit becomes a region. Defaults to `1`.
        levels: How deep regions nest in regions. Defaults to `1`.
        policy: A `keras.RematPolicy`, or a word for its `keep`: what the
            regions keep. Defaults to `None`, nothing.
        memory_budget: What a training step of a Functional or Sequential
            model may need, see `keras.RematPolicy`; in mode `"full"` without
            `layer_types` only. Defaults to `None`.

    Raises:
        ValueError: If an argument is none of the above.

    Example:

    ```python
    with keras.RematScope():
        model = keras.applications.ResNet50(weights=None)

    other = keras.applications.ResNet50(weights=None)
    with keras.RematScope("list_of_layers", layer_names=["conv4_*"]):
        other(keras.ops.ones((1, 224, 224, 3)))
    ```
    """

    def __init__(
        self,
        mode="full",
        output_size_threshold=1024,
        layer_names=None,
        *,
        layer_types=None,
        every=1,
        levels=1,
        policy=None,
        memory_budget=None,
    ):
        if mode not in MODES:
            raise ValueError(
                f"Invalid mode. `mode` must be one of {MODES}. "
                f"Received: mode={mode!r}"
            )
        self.mode = mode
        self.output_size_threshold = check_threshold(output_size_threshold)
        self.layer_names = check_names(layer_names, mode)
        self.layer_types = check_types(layer_types)
        self.every = check_count("every", every)
        self.levels = check_count("levels", levels)
        self.policy = get_policy(policy)
        self.memory_budget = check_budget(memory_budget)
        check_planned(self)
        self.matched = Names()
        self.units = [0]
        self.explicit = False  # from a model's own setting

    def __enter__(self):
        self.units = [0]
        scope_stack().append(self)
        return self

    def __exit__(self, error=None, *args, **kwargs):
        stack = scope_stack()
        if stack and stack[-1] is self:  # `clear_session` may have emptied it
            stack.pop()
        if error is not None:
            vars(self).pop(remat_later.PENDING, None)
        elif not stack:
            remat_later.ended(self)

    def as_policy(self):
        """The scope's cut of a model, as a policy."""
        policy = self.policy or RematPolicy()
        return policy.replaced(
            memory_budget=self.memory_budget or policy.memory_budget,
            every=max(self.every, policy.every),
            levels=max(self.levels, policy.levels),
        )

    def note(self, op):
        """Marks the names and types that match an operation, region or not."""
        self.names(op)
        self.has_type(op)

    def names(self, layer):
        """Whether `layer_names` names this layer."""
        found = False
        for pattern in self.layer_names:
            for name in (layer.name, getattr(layer, "path", None)):
                if name == pattern or (
                    name is not None and fnmatch.fnmatchcase(name, pattern)
                ):
                    self.matched.add(pattern)
                    found = True
        return found

    def has_type(self, layer):
        """Whether the layer is of one of `layer_types`, if there are any."""
        if self.layer_types is None:
            return True
        for cls in self.layer_types:
            if any(c is cls or c.__name__ == cls for c in type(layer).__mro__):
                self.matched.add(cls)
                return True
        return False

    def warn_unmatched(self):
        """Says once what matched no layer, after all of them ran."""
        asked = self.layer_names if self.mode == "list_of_layers" else []
        missing = [
            x
            for x in [*asked, *(self.layer_types or ())]
            if x not in self.matched
        ]
        if missing:
            warnings.warn(
                "No layer matched some names or types of a `RematScope`, so "
                "they had no effect. Use names or paths as `model.summary()` "
                f"and `layer.path` show them. Not found: {missing}",
                stacklevel=2,
            )
        self.matched.update(missing)

    def get_config(self):
        types = self.layer_types
        return {
            "mode": self.mode,
            "output_size_threshold": self.output_size_threshold,
            "layer_names": list(self.layer_names),
            "layer_types": types
            and [t if isinstance(t, str) else t.__name__ for t in types],
            "every": self.every,
            "levels": self.levels,
            "policy": self.policy and self.policy.get_config(),
            "memory_budget": self.memory_budget,
        }

    @classmethod
    def from_config(cls, config):
        scope = cls(**config)
        # Each layer of a loaded model has a copy of its scope.
        scope.matched = LOADED.setdefault(repr(config), scope.matched)
        return scope


def scope_stack():
    return global_state.get_global_attribute(
        "remat_scope_stack", default=[], set_to_default=True
    )


def innermost_scope():
    stack = global_state.get_global_attribute("remat_scope_stack")
    return stack[-1] if stack else None


def get_current_remat_mode():
    """The mode of the innermost open scope, for code that knows upstream's.

    Returns:
        A `RematMode` named tuple, or `None` if rematerialization is off.
    """
    scope = innermost_scope()
    if scope is None or scope.mode is None:
        return None
    return RematMode(scope.mode, scope.output_size_threshold, scope.layer_names)


def traced(trainer):
    """Whether a trainer's step was traced, under the scope that is open now."""
    scope = innermost_scope()
    now = None if scope is None else repr(scope.get_config())
    before = vars(trainer).get("_remat_traced")
    vars(trainer)["_remat_traced"] = now
    return trainer.train_function is not None and before == now


def note_scope(op):
    """Remembers the open scope on an operation that is wired into a graph."""
    scope = innermost_scope()
    if scope is not None and vars(op).get("_remat_scope") is None:
        vars(op)["_remat_scope"] = scope


@functools.cache
def off():
    """The scope of a layer that is never rematerialized."""
    scope = RematScope(None)
    scope.explicit = True
    return scope


def setting_of(op):
    """The setting that holds for an operation, by the order of who wins.

    Returns:
        A `RematPolicy` if it is the operation's own, the `RematScope` that
        applies, or `None` if the operation is not to be rematerialized.
    """
    own = vars(op).get("_remat_setting")
    if own is not None:
        return RematPolicy() if own is True else own or off()
    recorded = vars(op).get("_remat_scope")
    inherited = global_state.get_global_attribute("remat_inherited")
    if inherited is not None and inherited.explicit:
        # What a model says for itself holds for its layers, in any scope.
        is_off = recorded is not None and recorded.mode is None
        return None if is_off or inherited.mode is None else inherited
    scope = innermost_scope()
    if scope is None:
        scope = recorded or inherited
    if scope is None or scope.mode is None:
        return None
    return scope


class EffectiveSetting:
    """Descriptor: reads the setting that wins, writes the scope at creation."""

    def __get__(self, op, owner=None):
        if op is None:
            return self
        setting = setting_of(op)
        if setting is None and global_state.get_global_attribute(AGAIN):
            return off()  # It is still called by `wrap_call`.
        return setting

    def __set__(self, op, value):
        scope = vars(op)["_remat_scope"] = innermost_scope()
        if scope is not None:
            scope.note(op)


def without_scopes(f):
    """`f`, in which no scope that is open outside makes another region."""

    @functools.wraps(f, updated=())
    def call(*args, **kwargs):
        depth = global_state.get_global_attribute("remat_depth") or 0
        with attributes(remat_depth=depth + 1):
            return f(*args, **kwargs)

    return call
