"""Memory budgets where there is no graph to plan: refused, or warned of.

What is no model is known at once. Whether a model is a graph of layers is
known only when it is built, and whether a layer in a scope is part of such a
model only when it is called.
"""

import warnings

NEEDS = "a Functional or Sequential model"
BUDGET = "`memory_budget`"  # among the names that were warned of


def check_no_budget(policy, what):
    """Refuses a budget for what can be one region only.

    Args:
        policy: A `RematPolicy`, or any other setting.
        what: What the policy is set for, in words.
    """
    if getattr(policy, "memory_budget", None) is None:
        return
    raise ValueError(
        f"`memory_budget` is planned over the graph of layers of {NEEDS}; "
        f"{what} is one region, in which there is nothing to plan. Set the "
        "budget for the model that it is part of, or leave it out here. "
        f"Received: memory_budget={policy.memory_budget!r}"
    )


def warn_unplanned(noted, op):
    """Says once that a budget is not planned for an operation.

    Args:
        noted: Set of what was warned of before.
        op: The layer or model.
    """
    if BUDGET in noted:
        return
    noted.add(BUDGET)
    warnings.warn(
        f"`memory_budget` has no effect on {op.name!r}, as it is planned over "
        f"the graph of layers that {NEEDS} runs, and {op.name!r} runs none "
        "and is in none. As without a budget, each child layer of a model "
        "without a graph is one region (a Functional or Sequential model in "
        "it is planned, by itself, for the whole budget).",
        stacklevel=2,
    )
