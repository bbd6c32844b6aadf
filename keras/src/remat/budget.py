"""What a `memory_budget` means, and bytes for people."""

import warnings

from keras.src.backend.common.remat_checks import check_budget
from keras.src.backend.common.remat_checks import parse_bytes
from keras.src.remat.profile_trace import engine


def budget_bytes(budget, chain):
    """A `memory_budget` as a number of bytes, or `None` for no budget."""
    if budget is None:
        return None
    if budget == "auto":
        return free_memory()
    if isinstance(budget, str):
        return parse_bytes(budget)
    return int(budget * chain.plain_peak()) if budget < 1 else int(budget)


def check_bytes(budget):
    """A `memory_budget` for any batch, of which a share says nothing."""
    check_budget(budget)
    if budget == "auto":
        found = engine().free_memory()
        reason = "this device does not tell how much memory is free"
    else:
        is_share = budget is None or (
            not isinstance(budget, str) and 0 < budget < 1
        )
        found = None if is_share else budget_bytes(budget, None)
        reason = "a share of the plain peak means another number for each batch"
    if found is None:
        raise ValueError(
            "`memory_budget` must be a number of bytes or a string such as "
            f'"2GiB", as {reason}. Received: memory_budget={budget!r}'
        )
    return found


def free_memory():
    """Bytes free on the device, or `None` with a warning."""
    free = engine().free_memory()
    if free is None:
        warnings.warn(
            "This device does not tell how much memory is free, so "
            '`memory_budget="auto"` plans for the least memory. Give a number '
            "of bytes to plan for less arithmetic."
        )
    return free


def too_small(error, budget, batch):
    """The error that says what would fit.

    Args:
        error: The planner's `BudgetError`.
        budget: Bytes.
        batch: Size of the batch that was planned for.
    """
    fits = int(batch * budget / error.floor)
    advice = f"a batch of about {fits}" if fits else "no batch"
    return ValueError(
        "`memory_budget` must be at least the lowest peak that regions "
        f"can reach, {show(error.floor)} for a batch of {batch}. "
        f"Received: {show(budget)}, in which {advice} would fit."
    )


def show(count):
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
