"""What `remat_report` found: measured bytes beside predicted ones."""

import collections

import rich.markup
import rich.table

from keras.src import backend
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
    """

    def __init__(self, model, plain, remat, plain_peak, remat_peak, plan):
        self.name = model.name
        self.plain_peak, self.remat_peak = plain_peak, remat_peak
        self.plain_bytes = sum(plain.values())
        self.remat_bytes = sum(remat.values())
        self.predicted_bytes = self.predicted_plain_bytes = None
        self.predicted_peak = None
        columns = [plain, remat]
        if plan is not None:
            columns += predicted_by_layer(plan)
            self.predicted_plain_bytes = sum(columns[2].values())
            self.predicted_bytes = sum(columns[3].values())
            self.predicted_peak = plan.predicted_bytes
        names = dict.fromkeys(name for c in columns for name in c)
        in_order = [x.name for x in model.layers if x.name in names]
        self.by_layer = {
            name: LayerBytes(*(c.get(name, 0) for c in columns))
            for name in dict.fromkeys([*in_order, *names])
        }

    def summary(self):
        """Prints the measured and predicted bytes of each layer as a table."""
        from keras.src.remat import report

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
        report.print_rich([table, self.peak_line()])

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
    return [*("-" if b is None else show(b) for b in shown), ratio]


def predicted_by_layer(plan):
    """Kept bytes by name of layer: in a plain run, and as planned."""
    from keras.src.remat import report

    columns = []
    for segments in (report.whole_segments(plan), plan.planned.segments):
        kept = report.kept_by_node(plan.chain, segments)
        found = collections.Counter()
        for node, count in zip(plan.nodes, kept):
            found[node.path[0].name] += int(count)
        columns.append(found)
    return columns
