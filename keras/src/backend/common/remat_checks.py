"""Checks of what policies and scopes are given, and of what they make run."""

import numbers

import numpy as np

KEEP_WORDS = ("nothing", "matmuls", "matmuls_no_batch")


def function_name(f):
    return getattr(f, "__qualname__", repr(f))


def check_keep(keep):
    if callable(keep):
        return keep
    parts = [keep] if isinstance(keep, str) else keep
    ok = isinstance(parts, (list, tuple)) and all(
        isinstance(p, str) or callable(p) for p in parts
    )
    if not ok or not parts:
        raise ValueError(
            "`keep` must be one of "
            f"{', '.join(map(repr, KEEP_WORDS))}, a list of names given by "
            "`keras.ops.remat_name`, or a function of (op name, value name, "
            f"shape, dtype). Received: keep={keep!r} (of type {type(keep)})"
        )
    if isinstance(keep, str) and keep not in KEEP_WORDS:
        raise ValueError(
            f"Unknown policy. `keep` must be one of "
            f"{', '.join(map(repr, KEEP_WORDS))}; names of values are given "
            f"as a list, e.g. `keep=[{keep!r}]`. Received: keep={keep!r}"
        )
    return keep if isinstance(keep, str) else tuple(dict.fromkeys(parts))


def check_offload(offload):
    if isinstance(offload, bool):
        return offload
    if isinstance(offload, (list, tuple)) and all(
        isinstance(name, str) for name in offload
    ):
        return list(offload)
    raise ValueError(
        "`offload` must be a bool or a list of names given by "
        f"`keras.ops.remat_name`. Received: offload={offload!r}"
    )


UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


def check_budget(budget):
    if budget is None or isinstance(budget, str) and budget == "auto":
        return budget
    if isinstance(budget, np.number):
        budget = budget.item()  # which can be saved
    number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
    if number and 0 < budget < float("inf"):
        if isinstance(budget, int) or 0 < budget < 1 or budget == int(budget):
            return budget
    elif isinstance(budget, str) and (parse_bytes(budget) or 0) > 0:
        return budget
    raise ValueError(
        "`memory_budget` must be a positive number of bytes, a string such "
        'as "2GiB" or "512MB", a float between 0 and 1 (a share of the plain '
        f'peak) or "auto". Received: memory_budget={budget!r}'
    )


def parse_bytes(text):
    """The number of bytes that `text` names, or `None` if it names none."""
    digits = text.strip().rstrip("KMGIBkmgib ")
    unit = text.strip()[len(digits) :].strip().upper()
    try:
        return int(float(digits) * UNITS[unit])
    except (KeyError, ValueError):
        return None


def check_count(name, value):
    is_integer = isinstance(value, numbers.Integral)
    if is_integer and not isinstance(value, bool) and value >= 1:
        return int(value)
    raise ValueError(
        f"`{name}` must be an integer of at least 1. Received: {name}={value!r}"
    )


def raise_other(before, now):
    """Says that the second run of a region differs from the first."""
    raise ValueError(
        "A rematerialized function must run the same operations each time "
        f"that it runs. Received: {before} in the forward pass, and {now} "
        "when it ran again for the backward pass. Take out what changes "
        "between the runs (a value that is cached by the first, a Python "
        "counter), or let its policy keep nothing."
    ) from None
