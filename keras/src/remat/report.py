"""Shows plans as a table.

What a node keeps under a plan follows the memory model of `chain.py`: in a
plain part its residuals, and results that are needed after the part; in a
region only results that are needed after the region.
"""

import collections

import numpy as np
import rich.console
import rich.markup
import rich.table

from keras.src.remat import ways
from keras.src.remat.budget import show
from keras.src.remat.planned import Segment
from keras.src.remat.specs import UNKNOWN
from keras.src.utils import io_utils

Column = collections.namedtuple("Column", ["title", "wraps"])
COLUMNS = (
    Column("Region", False),
    Column("From .. to layer", True),
    Column("Keeps", True),
    Column("Layers", False),
    Column("Kept", False),
    Column("Share of peak", False),
    Column("Runs again", False),
)
DISPENSABLE = ("Share of peak", "Layers")  # where there is no room for all


def print_plan(plan):
    """Prints a plan as a table, one row for each region and plain part.

    Args:
        plan: A `RematPlan`.
    """
    table = rich.table.Table(
        title=f"Rematerialization of {rich.markup.escape(plan_name(plan))}",
        title_justify="left",
    )
    rows, width = plan_rows(plan), rich.console.Console().width
    shown = fitting(rows, width)
    is_narrow = sum(widest(rows, k) + 3 for k in shown) >= width
    for k in shown:
        # The names of layers get what room there is.
        squeezed = is_narrow and COLUMNS[k].title == "Keeps"
        table.add_column(
            COLUMNS[k].title,
            justify="right" if k > 2 else "left",
            overflow="fold",
            no_wrap=not COLUMNS[k].wraps,
            width=needed(rows, k) if squeezed else None,
        )
    for row in rows:
        table.add_row(*(rich.markup.escape(row[k]) for k in shown))
    print_rich([table, *plan_lines(plan)])


def fitting(rows, width):
    """The numbers of the columns for which there is room in a line."""
    shown = list(range(len(COLUMNS)))
    for title in DISPENSABLE:
        if sum(needed(rows, k) + 3 for k in shown) < width:
            break
        shown = [k for k in shown if COLUMNS[k].title != title]
    return shown


def widest(rows, k):
    return max(map(len, [COLUMNS[k].title, *(row[k] for row in rows)]))


def needed(rows, k):
    """How wide a column must be, to break no word."""
    if not COLUMNS[k].wraps:
        return widest(rows, k)
    return max(len(word) for row in rows for word in row[k].split())


def plan_name(plan):
    return getattr(plan.model, "name", None) or plan.function.name


def plan_rows(plan):
    """The table's rows, as text."""
    rows, number = [], 0
    kept = kept_by_node(plan.chain, plan.planned.segments)
    peak = max(1, plan.predicted_bytes)
    for s in plan.planned.segments:
        number += s.remat or bool(s.divided)
        bytes_kept = int(kept[s.start : s.stop].sum())
        again = plan.chain.extra_flops((s,))
        rows.append(
            (
                region_label(s, number),
                layers_of(plan.nodes, s),
                words_of(plan.policy_of(s)) if s.remat or s.divided else "-",
                str(s.stop - s.start),
                show(bytes_kept),
                f"{bytes_kept / peak:.0%}",
                show_flops(again) if again else "-",
            )
        )
    return rows


def region_label(segment, number):
    if segment.divided:
        share = "" if segment.divided == 1 else f"{segment.divided:.0%} "
        return f"{number} ({share}in parts)"
    if not segment.remat:
        return "-"
    inside = sum(s.remat for s in segment.inner)
    return f"{number} ({inside} inside)" if inside else str(number)


def words_of(policy):
    """What a policy keeps, for people."""
    parts = [getattr(p, "__name__", p) for p in policy.parts()]
    return ", ".join(map(str, parts))


def layers_of(nodes, segment):
    first = nodes[segment.start].operation.name
    last = nodes[segment.stop - 1].operation.name
    return first if segment.stop - segment.start == 1 else f"{first} .. {last}"


def plan_lines(plan):
    """Totals before and after, and what they do not rest on."""
    chain, segments = plan.chain, plan.planned.segments
    before = kept_by_node(chain, whole_segments(plan)).sum()
    after = kept_by_node(chain, segments).sum()
    extra = plan.predicted_extra_flops
    share = extra / max(1, plan.plain_flops)
    lines = [
        f" Kept after the forward run: {show(before)} plain, "
        f"{show(after)} planned",
        f" Peak: {show(plan.plain_bytes)} plain, "
        f"{show(plan.predicted_bytes)} planned{beside_peak(plan)}",
        f" Arithmetic of a step: {show_flops(plan.plain_flops)} plain, "
        f"{show_flops(plan.plain_flops + extra)} planned ({share:+.0%})",
    ]
    if plan.guessed:
        lines.append(
            f" Unknown dimensions were taken as {UNKNOWN}; "
            "give `input_spec=` for others"
        )
    if plan.unprofiled:
        names = ", ".join(dict.fromkeys(plan.unprofiled))
        lines.append(f" Guessed from shapes, not traced: {names}")
    return [rich.markup.escape(line) for line in lines]


def beside_peak(plan):
    more = plan.predicted_bytes > plan.plain_bytes
    text = " (more than plain)" if more else ""
    if plan.budget is not None:
        text += f", budget {show(plan.budget)}"
    return text


def show_flops(count):
    """Arithmetic for people."""
    for unit in ("", "k", "M", "G", "T"):
        if count < 1000 or unit == "T":
            return (
                f"{count:.0f} FLOP" if not unit else f"{count:.1f} {unit}FLOP"
            )
        count /= 1000


def print_rich(parts):
    """Prints as `model.summary()` does: captured where that is captured."""
    if io_utils.is_interactive_logging_enabled():
        console = rich.console.Console(highlight=False)
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, str))
        return
    console = rich.console.Console(
        highlight=False, force_terminal=False, color_system=None
    )
    with console.capture() as capture:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, str))
    io_utils.print_msg(capture.get(), line_break=False)


def kept_by_node(chain, segments):
    """Bytes that each node leaves for the backward pass.

    Args:
        chain: A `Chain`.
        segments: Tuple of `Segment`.

    Returns:
        Array of integers, one for each node.
    """
    kept = np.zeros(chain.n, np.int64)
    for s in segments:
        if ways.chosen(chain, s):
            kept[s.start] += chain.span(s)["keep_plain"]
            continue
        leaves = (chain.producer >= s.start) & (chain.producer < s.stop)
        leaves &= chain.last >= s.stop
        size = chain.size if s.remat else chain.unsaved_size
        np.add.at(kept, chain.producer[leaves], size[leaves])
        if s.remat:
            by_policy = chain.kept[s.keep].by_node(s.start, s.stop)
            kept[s.start : s.stop] += by_policy
        else:
            saved = np.diff(chain.saved_before[s.start : s.stop + 1])
            kept[s.start : s.stop] += saved
    return kept


def whole_segments(plan):
    """The segments of a plain run."""
    n = plan.chain.n
    return (Segment(0, n, False),) if n else ()
