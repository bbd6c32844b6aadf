"""The `remat` setting of a layer: `layer.remat`, saved with the layer."""

import functools
import inspect
import itertools
import weakref

from keras.src.backend.common.remat_checks import check_budget
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_scope import RematScope
from keras.src.backend.common.remat_unplanned import check_no_budget


class RematLayer:
    """Gives layers a `remat` setting that survives their configuration."""

    def __new__(cls, *args, **kwargs):
        accept_setting(cls)  # a dataclass or mixin gave it a constructor since
        # Not for the config that Keras makes by itself, which has it anyway.
        if not has_own_argument(cls):
            kwargs.pop("remat", None)
        return super().__new__(cls, *args, **kwargs)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # A subclass need not know of the setting in its own methods.
        if "get_config" in vars(cls):
            cls.get_config = with_setting(vars(cls)["get_config"])
        if isinstance(vars(cls).get("from_config"), classmethod):
            original = vars(cls)["from_config"].__func__
            cls.from_config = classmethod(applying_setting(original))
        accept_setting(cls)

    @property
    def remat(self):
        """How this layer is rematerialized.

        `None` (follow the `keras.RematScope`), `True` or `"full"`, `False`
        (never), or a `keras.RematPolicy`. Takes effect the next time that the
        layer is traced. On a Functional or Sequential model it means: cut the
        graph into regions, where the fewest bytes cross. On another model its
        direct child layers are the regions.
        """
        return vars(self).get("_remat_setting")

    @remat.setter
    def remat(self, value):
        setting = get_setting(value)
        if isinstance(setting, RematScope):  # saved by a layer of a scope
            vars(self)["_remat_scope"] = setting
        else:
            if not can_have_graph(self):
                check_no_budget(setting, f"a {type(self).__name__} layer")
            vars(self)["_remat_setting"] = setting
        if getattr(self, "train_function", None) is not None:
            trace_again(self)

    def remat_plan(self, batch_size, memory_budget=None, input_spec=None):
        """Shows what rematerialization of this model would cost and save.

        Nothing runs: the plan is made from shapes.

        Args:
            batch_size: Integer, samples in a training step.
            memory_budget: What a step may need beyond weights and batch, see
                `keras.RematPolicy`. Defaults to `None`: the model's own
                policy, or else the least memory at one more forward run.
            input_spec: Nest of `keras.KerasTensor`, for inputs of unknown
                size. Defaults to `None`: the model's inputs, of which unknown
                dimensions are taken as 32, as the plan's `summary()` says.

        Returns:
            A `keras.RematPlan`.

        Raises:
            ValueError: If the model is not a graph of layers, the batch size
                is no positive integer, or no plan fits into the budget.

        Example:

        >>> inputs = keras.Input((16,))
        >>> outputs = keras.layers.Dense(4)(keras.layers.Dense(8)(inputs))
        >>> plan = keras.Model(inputs, outputs).remat_plan(batch_size=32)
        >>> plan.predicted_bytes <= plan.plain_bytes
        True
        """
        from keras.src.remat import plan

        return plan.plan_for(self, batch_size, memory_budget, input_spec)

    @classmethod
    def from_config(cls, config, *args, **kwargs):
        create = applying_setting(super().from_config.__func__)
        return create(cls, config, *args, **kwargs)


def trace_again(trainer):
    """Makes a new training step, at once: a callback may run in `fit`."""
    trainer.train_function = None
    # NumPy and OpenVINO do not train.
    make = getattr(trainer, "make_train_function", None)
    if make is not None and getattr(trainer, "compiled", False):
        make()


def can_have_graph(layer):
    from keras.src.models.model import Model

    return isinstance(layer, Model)


def get_setting(value):
    """Checks a value for `layer.remat`, and gives it its stored form."""
    if value is None or isinstance(value, (bool, RematPolicy)):
        return value
    if isinstance(value, str) and value == "full":
        return True
    if isinstance(value, dict) and "config" in value:
        cls = {"RematPolicy": RematPolicy, "RematScope": RematScope}.get(
            value.get("class_name")
        )
        if cls is not None:
            return cls.from_config(value["config"])
    advice = 'To keep some values, use e.g. `keras.RematPolicy(keep="matmuls")`'
    if is_budget(value):
        advice = (
            "For a budget of memory, use "
            f"`keras.RematPolicy(memory_budget={value!r})`"
        )
    raise ValueError(
        '`remat` must be `None`, `True`, `False`, "full", a '
        "`keras.RematPolicy` or its serialized config. "
        f"Received: remat={value!r} (of type {type(value)}). "
        f"{advice}."
    )


def is_budget(value):
    """Whether a value would do as a `memory_budget`."""
    if isinstance(value, (bool, dict)) or value == 1:
        return False
    try:
        return bool(check_budget(value))
    except ValueError:
        return False


def setting_config(layer):
    """The layer's own setting, or else its scope, in serializable form."""
    setting = vars(layer).get("_remat_setting")
    if setting is None:
        setting = vars(layer).get("_remat_scope")
    if setting is None or isinstance(setting, bool):
        return setting
    name = type(setting).__name__
    return {"class_name": name, "config": setting.get_config()}


def with_setting(get_config):
    @functools.wraps(get_config)
    def wrapper(self, *args, **kwargs):
        config = get_config(self, *args, **kwargs)
        unset = vars(self).get("_remat_setting") is None
        if unset and "remat" in (config or ()) and has_own_argument(type(self)):
            return config  # it may mean something else there
        if isinstance(config, dict):
            setting = setting_config(self)
            if setting is None:
                config.pop("remat", None)
            else:
                config["remat"] = setting
        return config

    return wrapper


def applying_setting(from_config):
    @functools.wraps(from_config)
    def wrapper(cls, config, *args, **kwargs):
        is_set = isinstance(config, dict) and "remat" in config
        if not is_set or has_own_argument(cls):
            return from_config(cls, config, *args, **kwargs)
        config = dict(config)
        setting = config.pop("remat")
        layer = from_config(cls, config, *args, **kwargs)
        layer.remat = setting
        return layer

    return wrapper


ACCEPTING = weakref.WeakSet()


def accept_setting(cls):
    """Makes the constructor of a layer's class take `remat`.

    Many pass no other keywords on to `Layer`, or refuse or drop them.
    """
    init = cls.__init__
    if init in ACCEPTING or is_base(cls) or init is base_of(cls).__init__:
        return
    signature = signature_of(init)
    if signature is None:
        return

    @functools.wraps(init)
    def wrapper(self, *args, **kwargs):
        if "remat" in kwargs and not mentions_setting(cls, type(self)):
            setting = get_setting(kwargs.pop("remat"))
            if setting is not None:
                RematLayer.remat.fset(self, setting)
        init(self, *args, **kwargs)

    # Keras makes configs by itself from the names of the arguments.
    wrapper.__signature__ = signature
    ACCEPTING.add(wrapper)
    cls.__init__ = wrapper


def is_base(cls):
    """Whether `cls` is `keras.Layer` itself, which takes `remat` anyway."""
    return RematLayer in cls.__bases__


def base_of(cls):
    return next(c for c in cls.__mro__ if is_base(c))


def mentions_setting(cls, full):
    """Whether a constructor from `cls` on, in a `full` class, uses `remat`."""
    classes = itertools.dropwhile(lambda c: c is not cls, full.__mro__)
    for c in itertools.takewhile(lambda c: not is_base(c), classes):
        init = inspect.unwrap(vars(c).get("__init__", object.__init__))
        code = getattr(init, "__code__", None)
        if code is None:
            continue
        count = code.co_argcount + code.co_kwonlyargcount
        # A constant: `kwargs.pop("remat")`; in a tuple: `f(remat=...)`.
        for value in (code.co_varnames[:count], *code.co_consts):
            names = value if isinstance(value, tuple) else (value,)
            if "remat" in names:
                return True
    return False


def has_own_argument(cls):
    """Whether the constructor of a layer has an argument named `remat`."""
    signature = signature_of(cls.__init__)
    return signature is not None and "remat" in signature.parameters


def signature_of(f):
    """The signature, or `None` of what has none (such as `partialmethod`)."""
    try:
        return inspect.signature(f)
    except (TypeError, ValueError):
        return None


def copying_setting(clone):
    """Makes a function that clones its first argument clone the setting."""

    @functools.wraps(clone)
    def wrapper(model, *args, **kwargs):
        copy = clone(model, *args, **kwargs)
        setting = setting_config(model)
        if setting is not None and isinstance(copy, RematLayer):
            copy.remat = setting
        return copy

    return wrapper
