"""`RematPlan`: the regions chosen for a graph, and what they will cost."""

import functools

from keras.src import tree
from keras.src.api_export import keras_export
from keras.src.backend.common.remat_checks import check_count
from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.remat import cuts
from keras.src.remat import picture
from keras.src.remat import planner
from keras.src.remat import profile
from keras.src.remat import report
from keras.src.remat.budget import budget_bytes
from keras.src.remat.budget import check_bytes
from keras.src.remat.budget import show
from keras.src.remat.specs import UNKNOWN
from keras.src.remat.specs import has_unknown
from keras.src.remat.specs import with_batch
from keras.src.remat.structure import graph_of
from keras.src.remat.units import Units
from keras.src.remat.units import can_divide
from keras.src.remat.units import has_setting
from keras.src.utils import io_utils

AMPLE = 2**62  # a budget into which all fits


@keras_export("keras.RematPlan")
class RematPlan:
    """The regions chosen for a model, with predicted bytes and extra time.

    Made by `model.remat_plan(batch_size=...)`, from shapes alone: nothing
    runs, and no activation is allocated.

    Args:
        model: The Functional or Sequential model.
        specs: Flat list of `KerasTensor`: its inputs, without unknown
            dimensions.
        policy: The `keras.RematPolicy` to follow.
        nested: Whether the graph is part of another one that is cut too.
            Defaults to `False`.

    Example:

    ```python
    plan = model.remat_plan(batch_size=32, memory_budget="1GiB")
    plan.summary()
    plan.apply()
    ```
    """

    def __init__(self, model, specs, policy, nested=False):
        self.model = model
        self.function = graph_of(model)
        self.specs = specs
        self.policy = policy
        self.nested = nested
        # Within a budget regions that need keep nothing may keep products.
        has_budget = policy.memory_budget is not None
        self.chooses = has_budget and not policy.keeps_something()
        self.units = Units(self.function)
        self.nodes = self.units.nodes
        self.unprofiled = []
        self.guessed = False  # whether unknown dimensions were filled in
        budget = policy.memory_budget
        dividing = None if budget is None else policy
        self.costs = self.profiled(specs, self.unprofiled, dividing)
        self.budget = budget and budget_bytes(budget, self.chain)
        self.segments = cuts.chosen(self)

    @functools.cached_property
    def chain(self):
        """What the planner works on."""
        costs = self.costs
        bare = self.policy.memory_budget is None
        if bare and any(map(can_divide, self.nodes)):
            costs = self.profiled(self.specs, [], self.policy)
        return self.chain_of(costs)

    @functools.cached_property
    def budget_chain(self):
        """What the planner would work on if there were a budget."""
        if self.policy.memory_budget is not None:
            return self.chain
        policy = self.policy.replaced(memory_budget=AMPLE)
        return RematPlan(self.model, self.specs, policy, self.nested).chain

    @functools.cached_property
    def planned(self):
        """The `Plan`; a run without a budget never asks for its numbers."""
        return self.chain.plan(self.segments)

    def profiled(self, specs, unprofiled, policy=None):
        """The cost of each unit, for these inputs."""
        return profile.node_costs(
            self.units, self.nodes, specs, True, unprofiled, policy
        )

    def chain_of(self, costs, start=0, stop=None):
        part = slice(start, stop)
        nodes = self.nodes[part]
        has_loss = not self.nested and nodes[-1:] == self.nodes[-1:]
        chain = profile.chain_of(
            self.units,
            nodes,
            costs[part],
            has_loss,
            self.policy,
            self.chooses,
        )
        chain.borders = self.units.borders(start, stop, has_setting)
        return chain

    @property
    def batch_size(self):
        return self.specs[0].shape[0] if self.specs[0].shape else 1

    @property
    def predicted_bytes(self):
        """Peak of a training step beyond weights and batch, in bytes."""
        return int(self.planned.peak)

    @property
    def plain_bytes(self):
        """The same without rematerialization."""
        return int(self.chain.plain_peak())

    @property
    def predicted_extra_flops(self):
        """Arithmetic of all second runs."""
        return int(self.planned.extra_flops)

    @property
    def plain_flops(self):
        """Arithmetic of a plain step: a forward run and a backward of two."""
        return 3 * int(self.chain.flops.sum())

    def apply(self):
        """Turns the plan's policy on for the model.

        Returns:
            The model.
        """
        self.model.remat = self.policy
        return self.model

    def max_batch_size(self, memory_budget, limit=65536):
        """The largest batch whose plan fits into a budget.

        That is the plan which `keras.RematPolicy(memory_budget=...)` makes for
        such a batch; this one, or `True`, may need more.

        Args:
            memory_budget: Bytes, a string such as `"2GiB"`, or `"auto"`, what
                the device has free.
            limit: Largest batch to look at. Defaults to `65536`.

        Returns:
            An integer; 0 if not even one sample fits.

        Raises:
            ValueError: If the budget is none of these.
        """
        budget = check_bytes(memory_budget)
        low, high = 0, 1
        while high <= limit and self.floor(high) <= budget:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self.floor(middle) <= budget:
                low = middle
            else:
                high = middle
        return low

    def floor(self, batch_size):
        """Lowest peak that regions can reach for a batch, in bytes."""
        specs = [with_batch(s, batch_size) for s in self.specs]
        chain = self.chain_of(self.profiled(specs, [], self.policy))
        levels = max(2, self.policy.levels)
        return planner.least_peak(chain, levels).peak

    def policy_of(self, segment):
        """The policy by which a region of the plan keeps values."""
        if segment.keep is None:
            return self.policy
        return self.policy.replaced(keep=segment.keep)

    def line(self):
        """The plan in one line."""
        regions = sum(s.remat for s in self.segments)
        keep = sum(s.keep is not None for s in self.segments)
        divided = sum(s.divided > 0 for s in self.segments)
        layers = "layer" if divided == 1 else "layers"
        parts = f" ({keep} keep products)" if keep else ""
        parts += f", {divided} {layers} in parts" if divided else ""
        extra = self.predicted_extra_flops / max(1, self.plain_flops)
        peak, plain = show(self.predicted_bytes), show(self.plain_bytes)
        of_plain = f"{peak} of {plain}"
        if self.predicted_bytes > self.plain_bytes:
            of_plain = f"{peak}, more than the {plain} of plain"
        guess = f" (unknown dimensions as {UNKNOWN})" if self.guessed else ""
        return (
            f"remat: {regions} region{'' if regions == 1 else 's'}{parts}, "
            f"peak {of_plain}, {extra:.0%} more arithmetic{guess}"
        )

    def __repr__(self):
        return f"<RematPlan: {self.line()}>"

    def summary(self):
        """Prints the plan as a table."""
        report.print_plan(self)

    def plot(self, to_file="remat_plan.png"):
        """Draws memory over a step, and the trade-off against arithmetic.

        Args:
            to_file: Path of the picture. Defaults to `"remat_plan.png"`.

        Returns:
            The path.
        """
        return picture.plot_plan(self, to_file)

    def get_config(self):
        return {
            "policy": self.policy.get_config(),
            "input_shapes": [list(s.shape) for s in self.specs],
            "plan": self.planned.get_config(),
        }


def plan_for(model, batch_size, memory_budget=None, input_spec=None):
    """Makes the plan of a model, see `Model.remat_plan`."""
    function = graph_of(model)
    if function is None:
        raise ValueError(
            "A plan needs a graph of layers, a Functional or Sequential model "
            f"that is built. Received: {model}. Of other models each child "
            "layer is a region: set `model.remat = True`, or make a plan of "
            "the Functional models in it."
        )
    own = vars(model).get("_remat_setting")
    policy = own if isinstance(own, RematPolicy) else RematPolicy()
    if memory_budget is not None:
        policy = RematPolicy(
            policy.keep,
            policy.offload,
            memory_budget,
            policy.every,
            policy.levels,
        )
    given = function.inputs if input_spec is None else tree.flatten(input_spec)
    batch_size = check_count("batch_size", batch_size)
    specs = [with_batch(s, batch_size) for s in given]
    plan = RematPlan(model, specs, policy)
    plan.guessed = has_unknown(given)
    return plan


def log(plan):
    if plan.budget is not None:
        io_utils.print_msg(plan.line())
