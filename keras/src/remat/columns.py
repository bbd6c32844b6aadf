"""Two columns for `model.summary()`: what each layer keeps, and its region."""

import collections

from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.remat import measure
from keras.src.remat import plan as remat_plan
from keras.src.remat.budget import show
from keras.src.remat.report import kept_by_node
from keras.src.remat.report import region_label
from keras.src.remat.report import whole_segments
from keras.src.remat.segments import LAST
from keras.src.remat.specs import with_batch
from keras.src.remat.structure import children_of
from keras.src.remat.structure import graph_of
from keras.src.remat.structure import holds_blocks

SummaryColumns = collections.namedtuple(
    "SummaryColumns", ["header", "rows", "total"]
)
SummaryColumns.__doc__ = """Two columns for `model.summary()`.

Args:
    header: Two strings.
    rows: Dict from a layer's name to its two fields; names that are not
        there have `NO_FIELDS`.
    total: A line for below the table.
"""
NO_FIELDS = ("-", "-")


def summary_columns(model, batch_size=None):
    """Bytes that each layer keeps in training, and the region it runs in.

    Args:
        model: The model that is summarized.
        batch_size: Integer. Defaults to `None`: that of the step that last
            ran, or that of the model's inputs or, if they leave it open, 1.

    Returns:
        A `SummaryColumns`.
    """
    function = graph_of(model)
    if function is None or not function.inputs:
        return without_graph(model)
    specs, origin = specs_of(function, batch_size)
    policy, region = measure.policy_of(model), "Region"
    plan = None
    if policy is not None:
        try:
            plan = remat_plan.RematPlan(model, specs, policy)
        except ValueError:  # A share of the peak may not do for a batch of 1.
            region = f"Region (none fits {specs[0].shape[0]})"
    is_on = plan is not None
    if not is_on:
        plan = remat_plan.RematPlan(model, specs, RematPolicy())
    segments = plan.planned.segments if is_on else whole_segments(plan)
    total = f" Peak of a step{origin}: {show(plan.plain_bytes)} plain"
    total += f", {show(plan.predicted_bytes)} planned" if is_on else ""
    header = (f"Kept (batch {plan.batch_size})", region)
    return SummaryColumns(header, fields_of(plan, segments), total)


def specs_of(function, batch_size):
    """The inputs to plan for, and words for where their sizes are from."""
    last = vars(function).get(LAST)
    if batch_size is None and last is not None:
        return last, ", as it last ran"
    shape = function.inputs[0].shape
    known = shape[0] if len(shape) else None
    size = batch_size or known or 1
    specs = [with_batch(x, size) for x in function.inputs]
    return specs, f", if it had a batch of {size}"


def without_graph(model):
    """The regions of a model that is no graph; bytes are not known then."""
    rows, number, units = no_rows(), 0, 0
    policy = measure.policy_of(model)
    for layer in children_of(model):
        own = vars(layer).get("_remat_setting")
        if own is False or (own is None and policy is None):
            continue
        if own is None:
            units += 1
            if (units - 1) % policy.every:
                continue
        number += 1
        label = "in parts" if has_parts(layer, own) else str(number)
        rows[layer.name] = ("-", label)
    total = " Bytes are known of Functional and Sequential models only"
    if number:
        total += "; regions are counted in the order of creation"
    return SummaryColumns(("Kept", "Region"), rows, total)


def has_parts(layer, own):
    """Whether not the layer is the region, but its own parts are."""
    if graph_of(layer) is not None:
        return True
    return own is None and holds_blocks(layer)


def no_rows():
    return collections.defaultdict(lambda: NO_FIELDS)


def fields_of(plan, segments):
    kept = kept_by_node(plan.chain, segments)
    bytes_of, regions = {}, {}
    number = 0
    for s in segments:
        number += s.remat or bool(s.divided)
        for i in range(s.start, s.stop):
            for op in plan.nodes[i].path:  # a model has those of its layers
                name = op.name
                bytes_of[name] = bytes_of.get(name, 0) + int(kept[i])
                if s.remat or s.divided:
                    label = region_label(s._replace(inner=()), number)
                    regions.setdefault(name, {})[label] = None
    rows = no_rows()
    for name, count in bytes_of.items():
        rows[name] = (show(count), ", ".join(regions.get(name, "-")))
    return rows
