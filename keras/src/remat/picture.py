"""Draws a plan: memory over a step, and the trade-off behind the choice."""

import numpy as np

from keras.src.remat import planner
from keras.src.remat import report
from keras.src.remat.budget import show

PLAIN, PLANNED, BUDGET = "#8a8f98", "#1f6fb4", "#c0392b"
LEGEND = {"fontsize": 9, "framealpha": 1, "edgecolor": "white"}
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def plot_plan(plan, to_file):
    """Draws a plan, see `RematPlan.plot`.

    Args:
        plan: A `RematPlan`.
        to_file: Path of the picture; its ending says which format.

    Returns:
        The path.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    # A figure of its own: `pyplot` would keep it, and choose a window.
    figure = figure_class()(figsize=(11, 4.4), layout="constrained", dpi=130)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    figure.suptitle(f"Rematerialization of {report.plan_name(plan)}")
    unit, scale = unit_of(max(plan.plain_bytes, plan.predicted_bytes))
    draw_memory(left, plan, unit, scale)
    draw_tradeoff(right, plan, unit, scale)
    for axes in (left, right):
        axes.grid(color="#e6e8eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(to_file)
    return to_file


def figure_class():
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "`RematPlan.plot` needs matplotlib, which is not installed. "
            "Install it with `pip install matplotlib`, or use "
            "`RematPlan.summary()`, which prints the plan as text."
        )

    def make(**kwargs):
        figure = Figure(**kwargs)
        FigureCanvasAgg(figure)
        return figure

    return make


def unit_of(most):
    return next(
        (u, s) for u, s in reversed(UNITS.items()) if most >= s or s == 1
    )


def draw_memory(axes, plan, unit, scale):
    """Bytes, moment by moment; forward, then backward after the line."""
    whole = report.whole_segments(plan)
    curves = [
        ("plain", whole, PLAIN, plan.plain_bytes),
        ("planned", plan.planned.segments, PLANNED, plan.predicted_bytes),
    ]
    for name, segments, color, peak in curves:
        times, held = curve(plan.chain, segments)
        axes.fill_between(
            times, held / scale, step="mid", color=color, alpha=0.22, lw=0
        )
        axes.step(
            times,
            held / scale,
            where="mid",
            color=color,
            linewidth=1.6,
            label=f"{name}, peak {show(peak)}",
        )
    draw_budget(axes.axhline, plan, scale)
    axes.axvline(0.5, color="#444", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.28)
    axes.set_xticks([0.25, 0.75], ["forward", "backward, second runs"])
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(f"activations and gradients ({unit})")
    axes.set_title("Memory over one training step", fontsize=11)
    axes.legend(loc="upper left", ncols=2, **LEGEND)


def curve(chain, segments):
    """Moments from 0 to 1, half of them forward, and their bytes."""
    moments = chain.timeline(segments)
    held = np.array([count for _, count in moments], float)
    n = sum(label.startswith("forward") for label, _ in moments)
    forward = (np.arange(n) + 0.5) / max(1, n) / 2
    rest = len(moments) - n
    backward = 0.5 + (np.arange(rest) + 0.5) / max(1, rest) / 2
    return np.concatenate([forward, backward]), held


def draw_budget(line, plan, scale):
    if plan.budget is None or plan.budget > 1.5 * plan.plain_bytes:
        return
    line(
        plan.budget / scale,
        color=BUDGET,
        linewidth=1.2,
        linestyle="--",
        label=f"budget {show(plan.budget)}",
    )


def draw_tradeoff(axes, plan, unit, scale):
    """Peak against extra arithmetic, over all budgets."""
    levels = max(2, plan.policy.levels)
    points = planner.tradeoff(plan.budget_chain, points=40, max_levels=levels)
    share = 100 / max(1, plan.plain_flops)
    peaks = [peak / scale for peak, _, _ in points]
    costs = [extra * share for _, extra, _ in points]
    axes.step(
        peaks,
        costs,
        where="post",
        color=PLAIN,
        linewidth=1.4,
        label="cheapest plan for a budget",
    )
    axes.plot(peaks, costs, ".", color=PLAIN, markersize=4, clip_on=False)
    chosen = plan.predicted_bytes / scale, plan.predicted_extra_flops * share
    axes.plot(
        *chosen,
        "o",
        color=PLANNED,
        markersize=9,
        zorder=5,
        clip_on=False,
        label=f"this plan: {show(plan.predicted_bytes)}, "
        f"{chosen[1]:+.0f} % arithmetic",
    )
    draw_budget(axes.axvline, plan, scale)
    margin = (max(peaks) - min(peaks)) / 4
    axes.set_xlim(left=max(0, min(peaks) - margin))
    axes.set_ylim(0, max([*costs, chosen[1], 1]) * 1.45)
    axes.set_xlabel(f"peak ({unit})")
    axes.set_ylabel("extra arithmetic (% of a plain step)")
    axes.set_title("What less memory costs", fontsize=11)
    axes.legend(loc="upper right", **LEGEND)
