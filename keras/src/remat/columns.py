"""Two columns for `model.summary()`: what each layer keeps, and its region."""

import collections

from keras.src.backend.common.remat_policy import RematPolicy
from keras.src.remat import measure
from keras.src.remat import plan as remat_plan
from keras.src.remat.budget import show
from keras.src.remat.report import kept_by_node
from keras.src.remat.report import region_label
from keras.src.remat.report import whole_segments
from keras.src.remat.specs import with_batch
from keras.src.remat.structure import graph_of

SummaryColumns = collections.namedtuple("SummaryColumns", ["header", "rows"])
SummaryColumns.__doc__ = """Two columns for `model.summary()`.

Args:
    header: Two strings.
    rows: Dict from a layer's name to its two fields; names that are not
        there have `NO_FIELDS`.
"""
NO_FIELDS = ("-", "-")


def summary_columns(model, batch_size=None):
    """Bytes that each layer keeps in training, and the region it runs in.

    Args:
        model: The model that is summarized.
        batch_size: Integer. Defaults to `None`: that of the model's inputs
            or, if they leave it open, 1.

    Returns:
        A `SummaryColumns`.
    """
    function = graph_of(model)
    if function is None or not function.inputs:
        return SummaryColumns(("Kept", "Region"), no_rows())
    shape = function.inputs[0].shape
    known = shape[0] if len(shape) else None
    batch_size = batch_size or known or 1
    specs = [with_batch(x, batch_size) for x in function.inputs]
    policy, region = measure.policy_of(model), "Region"
    plan = None
    if policy is not None:
        try:
            plan = remat_plan.RematPlan(model, specs, policy)
        except ValueError:  # A share of the peak may not do for a batch of 1.
            region = "Region (none fits)"
    if plan is None:
        plan = remat_plan.RematPlan(model, specs, RematPolicy())
        segments = whole_segments(plan)
    else:
        segments = plan.planned.segments
    rows = fields_of(plan, segments)
    return SummaryColumns((f"Kept (batch {batch_size})", region), rows)


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
