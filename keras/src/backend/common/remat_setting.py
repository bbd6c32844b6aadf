"""The `remat` setting of a layer: `layer.remat`, saved with the layer."""

import functools

from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.backend.common.remat_scope import RematScope


class RematLayer:
    """Gives layers a `remat` setting that survives their configuration."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # A subclass need not know of the setting in its own methods.
        if "get_config" in vars(cls):
            cls.get_config = with_setting(vars(cls)["get_config"])
        if isinstance(vars(cls).get("from_config"), classmethod):
            original = vars(cls)["from_config"].__func__
            cls.from_config = classmethod(applying_setting(original))

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
            vars(self)["_remat_setting"] = setting
        if getattr(self, "train_function", None) is not None:
            self.train_function = None  # trace again, with the new setting

    @classmethod
    def from_config(cls, config, *args, **kwargs):
        create = applying_setting(super().from_config.__func__)
        return create(cls, config, *args, **kwargs)


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
    raise ValueError(
        '`remat` must be `None`, `True`, `False`, "full", a '
        "`keras.RematPolicy` or its serialized config. "
        f"Received: remat={value!r} (of type {type(value)}). "
        'To keep some values, use e.g. `keras.RematPolicy(keep="matmuls")`.'
    )


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
        if not isinstance(config, dict) or "remat" not in config:
            return from_config(cls, config, *args, **kwargs)
        config = dict(config)
        setting = config.pop("remat")
        layer = from_config(cls, config, *args, **kwargs)
        layer.remat = setting
        return layer

    return wrapper


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
