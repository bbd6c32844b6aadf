"""Checks of what scopes are given, one argument against the other."""

import numbers
import warnings


def check_threshold(value):
    """Checks `output_size_threshold`."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if is_number and value >= 0:
        return value
    raise ValueError(
        "`output_size_threshold` must be a number of elements, of at least "
        f"0. Received: output_size_threshold={value!r}"
    )


def check_names(names, mode):
    """Checks `layer_names`, and that they have an effect."""
    if names is None:
        if mode == "list_of_layers":
            raise ValueError(
                "Mode 'list_of_layers' needs `layer_names`, a list of names, "
                "paths or patterns of layers. Received: layer_names=None"
            )
        return []
    if isinstance(names, str) or not all(isinstance(n, str) for n in names):
        raise ValueError(
            "`layer_names` must be a list of strings, e.g. "
            f"`layer_names=['dense_1']`. Received: layer_names={names!r}"
        )
    if names and mode not in ("list_of_layers", None):
        warnings.warn(
            "`layer_names` is followed in mode 'list_of_layers' only, so "
            f"layers are rematerialized whatever their names. Received: "
            f"mode={mode!r}, layer_names={names!r}",
            stacklevel=3,
        )
    return list(names)


def check_types(types):
    if types is None:
        return None
    types = types if isinstance(types, (list, tuple)) else [types]
    if all(isinstance(t, (str, type)) for t in types) and types:
        return tuple(types)
    raise ValueError(
        "`layer_types` must be layer classes or their names. "
        f"Received: layer_types={types!r}"
    )


def check_planned(scope):
    """Refuses a budget in a scope that makes regions of single layers."""
    if scope.mode is None:
        return
    if scope.mode == "full" and scope.layer_types is None:
        return
    budget = scope.as_policy().memory_budget
    if budget is not None:
        types = [getattr(t, "__name__", t) for t in scope.layer_types or ()]
        raise ValueError(
            "`memory_budget` chooses the regions itself, so it needs mode "
            "'full' without `layer_types`. Received: "
            f"memory_budget={budget!r}, mode={scope.mode!r}"
            + (f", layer_types={types}" if types else "")
        )
