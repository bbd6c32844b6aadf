"""What `remat_report` found: measured bytes beside predicted ones."""

import collections

import rich.markup
import rich.table

from keras.src import backend
from keras.src.remat import profile_policy
from keras.src.remat import report
from keras.src.remat.budget import show

LayerBytes = collections.namedtuple(
    "LayerBytes",
    ["plain", "remat", "predicted_plain", "predicted"],
    defaults=[None, None],
)
LayerBytes.__doc__ = """Bytes that one layer keeps for the backward pass.

Args:
    plain: Measured without rematerialization.
    remat: Measured with it.
    predicted_plain: Predicted without it, or `None`.
    predicted: Predicted with it, or `None`.
"""

Measured = collections.namedtuple("Measured", ["by_layer", "by_label", "peak"])
Measured.__doc__ = """What a step was found to keep.

Args:
    by_layer: Dict from names of layers to bytes.
    by_label: Dict from what tables call values that a policy keeps, see
        `RematPolicy.label`, to a list of their bytes.
    peak: Most bytes at once, or `None`.
"""

NameBytes = collections.namedtuple(
    "NameBytes", ["values", "bytes", "predicted"]
)
NameBytes.__doc__ = """What policies keep under one name.

Args:
    values: How many values, measured.
    bytes: Their bytes, measured.
    predicted: Predicted bytes, or `None`.
"""


class RematReport:
    """What a training step keeps, measured and predicted, see `remat_report`.

    Attributes:
        plain_bytes: Bytes kept between the forward and the backward pass
            without rematerialization.
        remat_bytes: The same with it.
        predicted_bytes: What the plan predicts for `remat_bytes`, or `None`
            if the model itself is not a graph with a plan.
        predicted_plain_bytes: What it predicts for `plain_bytes`, or `None`.
        plain_peak: Most bytes at once in a step without rematerialization,
            or `None` if the backend does not tell.
        remat_peak: The same with it.
        predicted_peak: What the plan predicts for `remat_peak`, or `None`.
        by_layer: Dict from the name of a layer, as in `model.summary()`, to
            `LayerBytes`: `plain`, `remat`, `predicted_plain`, `predicted`.
            What no layer made is under `"(loss)"` and `"(other)"`.
        by_name: Dict from the name of a value that a policy keeps, or from
            the kind of operation that made it if it has none (`"matmul"`,
            `"conv"`, `"attention"`, else the engine's word), to `NameBytes`:
            `values`, `bytes`, `predicted`. A name that no value has is there
            with zeros.
    """

    def __init__(self, model, plain, remat, plan, names):
        self.name = model.name
        self.plain_peak, self.remat_peak = plain.peak, remat.peak
        self.plain_bytes = sum(plain.by_layer.values())
        self.remat_bytes = sum(remat.by_layer.values())
        self.predicted_bytes = self.predicted_plain_bytes = None
        self.predicted_peak = None
        columns = [plain.by_layer, remat.by_layer]
        if plan is not None:
            columns += predicted_by_layer(plan)
            self.predicted_plain_bytes = sum(columns[2].values())
            self.predicted_bytes = sum(columns[3].values())
            self.predicted_peak = plan.predicted_bytes
        found = dict.fromkeys(name for c in columns for name in c)
        in_order = [x.name for x in model.layers if x.name in found]
        self.by_layer = {
            name: LayerBytes(*(c.get(name, 0) for c in columns))
            for name in dict.fromkeys([*in_order, *found])
        }
        predicted = None if plan is None else predicted_by_name(plan)
        self.by_name = by_name(remat.by_label, predicted, names)

    def summary(self):
        """Prints the measured and predicted bytes of each layer as a table."""
        table = rich.table.Table(
            title=f"Kept for the backward pass of {self.name} "
            f"on {backend.backend()}",
            title_justify="left",
        )
        table.add_column("Layer", overflow="fold")
        for name in ("Plain", "predicted", "Remat", "predicted", "Ratio"):
            table.add_column(name, justify="right")
        for name, row in self.by_layer.items():
            if any(row):
                table.add_row(rich.markup.escape(name), *fields(row))
        table.add_section()
        total = LayerBytes(
            self.plain_bytes,
            self.remat_bytes,
            self.predicted_plain_bytes,
            self.predicted_bytes,
        )
        table.add_row("Total", *fields(total))
        tables = [table, self.name_table()] if self.by_name else [table]
        report.print_rich([*tables, self.peak_line()])

    def name_table(self):
        table = rich.table.Table(
            title="Of that, kept by policies", title_justify="left"
        )
        table.add_column("Name, or kind of operation", overflow="fold")
        for name in ("Values", "Kept", "predicted"):
            table.add_column(name, justify="right")
        for name, row in self.by_name.items():
            shown = (show(row.bytes), in_table(row.predicted))
            table.add_row(rich.markup.escape(name), str(row.values), *shown)
        return table

    def __repr__(self):
        return (
            f"<RematReport: {show(self.plain_bytes)} kept plain, "
            f"{show(self.remat_bytes)} with rematerialization; "
            "`summary()` prints all>"
        )

    def peak_line(self):
        if self.plain_peak is None:
            return " Peak: this backend does not tell"
        line = f" Peak: {show(self.plain_peak)} plain, "
        line += f"{show(self.remat_peak)} with rematerialization"
        if self.predicted_peak is not None:
            line += f", predicted {show(self.predicted_peak)}"
        return line


def fields(row):
    ratio = f"{row.remat / row.plain:.2f}" if row.plain else "-"
    shown = (row.plain, row.predicted_plain, row.remat, row.predicted)
    return [*map(in_table, shown), ratio]


def in_table(count):
    return "-" if count is None else show(count)


def by_name(measured, predicted, asked):
    """Rows of `RematReport.by_name`, those of most bytes first.

    Args:
        measured: Dict from labels to lists of bytes.
        predicted: Dict from labels to bytes, or `None`.
        asked: The names that policies keep.
    """
    sizes = {label: sum(found) for label, found in measured.items()}
    labels = sorted(sizes, key=sizes.get, reverse=True)
    rows = {}
    for label in dict.fromkeys([*labels, *(predicted or ()), *asked]):
        found = measured.get(label, ())
        guess = None if predicted is None else predicted.get(label, 0)
        rows[label] = NameBytes(len(found), sum(found), guess)
    return rows


def predicted_by_name(plan):
    """Bytes that the regions of a plan keep by policy, by label."""
    found = collections.Counter()
    for s in plan.planned.segments:
        if s.remat:
            costs = plan.costs[s.start : s.stop]
            policy = plan.policy_of(s)
            found.update(profile_policy.kept_by_label(costs, policy))
    return found


def predicted_by_layer(plan):
    """Kept bytes by name of layer: in a plain run, and as planned."""
    columns = []
    for segments in (report.whole_segments(plan), plan.planned.segments):
        kept = report.kept_by_node(plan.chain, segments)
        found = collections.Counter()
        for node, count in zip(plan.nodes, kept):
            found[node.path[0].name] += int(count)
        columns.append(found)
    return columns
