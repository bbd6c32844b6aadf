"""Pictures of measurements."""

import matplotlib.pyplot as plt
from matplotlib.patches import Patch

MIB = 2**20
COLORS = ["#8a8f98", "#d9480f", "#1864ab", "#2b8a3e", "#862e9c"]


def new_figure(width, height):
    figure, axes = plt.subplots(
        figsize=(width, height), layout="constrained", dpi=120
    )
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def draw_step(path, usages):
    """Draws memory over one training step.

    Args:
        path: Where to write the picture.
        usages: Dictionary of `measure.Usage` by name, the plain one first.
    """
    figure, axes = new_figure(9, 4.6)
    highest = max(u.peak for u in usages.values()) / MIB
    for k, (name, usage) in enumerate(usages.items()):
        draw_course(axes, COLORS[k], name, usage)
        draw_backward(axes, COLORS[k], name, usage, (1.26 - 0.06 * k) * highest)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.34 * highest)
    axes.set_xlabel("progress of one training step (order of execution)")
    axes.set_ylabel("MiB beyond weights, optimizer and batch")
    first, *_, last = usages
    share = usages[last].peak / usages[first].peak
    title = f"Memory of a training step: {last} peaks at {share:.0%} of {first}"
    axes.set_title(title, loc="left", weight="bold")
    axes.legend(loc="upper right", frameon=False)
    save(figure, path)


def draw_course(axes, color, name, usage):
    where = positions(usage.timeline)
    mib = [v / MIB for v in usage.timeline]
    axes.fill_between(where, mib, color=color, alpha=0.25, linewidth=0)
    axes.plot(where, mib, color=color, linewidth=1.2, label=name)
    top = max(mib)
    at = where[mib.index(top)]
    axes.plot([at], [top], "o", color=color, markersize=4)
    axes.annotate(
        f"{usage.peak / MIB:.1f} MiB",
        (at, top),
        xytext=(0, 6),
        textcoords="offset points",
        ha="center",
        color=color,
        weight="bold",
    )


def draw_backward(axes, color, name, usage, height):
    if usage.backward is None:
        return
    x = positions(usage.timeline)[usage.backward]
    axes.vlines(x, 0, height, color=color, linewidth=0.8, linestyle=":")
    text = f" {name}: backward begins"
    axes.text(x, height, text, color=color, fontsize=8, va="center")


def positions(timeline):
    count = max(1, len(timeline) - 1)
    return [k / count for k in range(len(timeline))]


STRATEGY_COLORS = {
    "full": "#d9480f",
    "budget 0.5": "#f59f00",
    "budget 0.25": "#e8590c",
    "keep matmuls": "#ffc078",
    "by hand": "#1864ab",
    "by hand, ordered": "#74c0fc",
    "by hand, no early stop": "#4dabf7",
    "stock full": "#8a8f98",
}


def draw_shares(path, shares):
    """Draws peak memory as a share of plain training.

    Args:
        path: Where to write the picture.
        shares: Nested dictionary: backend, model, strategy, share.
    """
    if not shares:
        return
    figure, grid = plt.subplots(
        len(shares),
        1,
        figsize=(10, 0.6 + 2.8 * len(shares)),
        layout="constrained",
        dpi=110,
        squeeze=False,
    )
    for (backend, models), axes in zip(shares.items(), grid[:, 0]):
        draw_bars(axes, backend, models)
    figure.legend(
        handles=[Patch(color=c, label=s) for s, c in STRATEGY_COLORS.items()],
        loc="outside lower center",
        ncols=4,
        frameon=False,
    )
    figure.suptitle(
        "Peak memory of a training step, as a share of plain training",
        weight="bold",
    )
    save(figure, path)


def draw_bars(axes, backend, models):
    used = {s for values in models.values() for s in values}
    strategies = [s for s in STRATEGY_COLORS if s in used]
    width = 0.84 / len(strategies)
    for k, strategy in enumerate(strategies):
        for i, values in enumerate(models.values()):
            if strategy in values:
                x = i + (k + 0.5) * width - 0.42
                draw_bar(axes, x, width, strategy, values[strategy])
    axes.axhline(1, color="#495057", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(models)), list(models))
    axes.set_title(backend, loc="left")
    axes.set_ylabel("share of plain")
    axes.spines[["top", "right"]].set_visible(False)


def draw_bar(axes, x, width, strategy, value):
    color = STRATEGY_COLORS[strategy]
    axes.bar(x, value or 0, 0.92 * width, color=color)
    text, turn = (f"{value:.2f}", 0) if value else ("fails", 90)
    axes.text(
        x,
        (value or 0) + 0.02,
        text,
        ha="center",
        va="bottom",
        fontsize=7,
        rotation=turn,
        color="black" if value else color,
    )
