"""Pictures of measurements."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402

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
    xlabel = "progress of one training step (order of execution)"
    if not all(map(shows_peak, usages.values())):
        # XLA lets results take the place of what they are made from.
        xlabel += (
            "\nfilled: values alive, one by one; dashed: the memory that the "
            "compiler reserves for them, some in the place of others"
        )
    axes.set_xlabel(xlabel)
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
    text = f"{usage.peak / MIB:.1f} MiB"
    if shows_peak(usage):
        axes.plot([at], [top], "o", color=color, markersize=4)
    else:
        top = usage.peak / MIB
        axes.axhline(top, color=color, linewidth=1, linestyle="--")
        text, at = f"{text} reserved", 0.01
    axes.annotate(
        text,
        (at, top),
        xytext=(0, 6),
        textcoords="offset points",
        ha="center" if shows_peak(usage) else "left",
        color=color,
        weight="bold",
    )


def shows_peak(usage):
    """Whether the highest point of the curve is the peak that is told."""
    return max(usage.timeline) == usage.peak


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


# Ours in warm colours, the engine's own in blue, stock in grey.
STRATEGIES = {
    "full": ("#d9480f", "o"),
    "region per block": ("#f08c00", "s"),
    "keep matmuls": ("#e599f7", "D"),
    "budget 0.5": ("#2b8a3e", ">"),
    "budget 0.25": ("#2b8a3e", "<"),
    "by hand": ("#1864ab", "X"),
    "by hand, ordered": ("#4dabf7", "P"),
    "by hand, no early stop": ("#4dabf7", "*"),
    "stock full": ("#212529", "v"),
}
FAR = 1.2  # Where markers end; what lies beyond is written there.
ROOM = 0.55  # Right of them, for words.


def draw_shares(path, groups):
    """Draws peak memory as a share of plain training.

    Args:
        path: Where to write the picture.
        groups: Nested dictionary: backend, model, list of results.
    """
    names = list(dict.fromkeys(m for x in groups.values() for m in x))
    names = [n for n in names if n != "chain"]
    names.sort(key=lambda name: "-" in name)  # variants last
    figure, grid = plt.subplots(
        1,
        len(groups),
        figsize=(4.2 * len(groups), 1.5 + 0.85 * len(names)),
        layout="constrained",
        dpi=110,
        sharey=True,
        squeeze=False,
    )
    for (backend, models), axes in zip(groups.items(), grid[0]):
        for i, name in enumerate(names):
            draw_model(axes, i, models.get(name, ()), "-" in name)
        dress(axes, backend, names)
    handles = [
        Line2D([], [], color=c, marker=m, linestyle="", label=s)
        for s, (c, m) in STRATEGIES.items()
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=5, frameon=False
    )
    figure.suptitle(
        "Peak memory of a training step as a share of plain training "
        "(hollow: wrong numbers)",
        weight="bold",
    )
    save(figure, path)


def dress(axes, backend, names):
    axes.axvline(1, color="#868e96", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, FAR + ROOM)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.grid(axis="x", color="#e9ecef", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.set_title(backend, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw_model(axes, height, group, variant):
    """The strategies of one model, one below the other."""
    names = list(STRATEGIES)
    axes.axhline(height + 0.5, color="#ced4da", linewidth=0.6)
    if not any(found["rows"] for found in group):
        text = "on TensorFlow only" if variant else "not measured yet"
        axes.text(0.5, height, text, fontsize=6, color="#868e96")
    for found in group:
        base = found["rows"].get("plain", {}).get("peak")
        for name, row in found["rows"].items():
            if name not in STRATEGIES or not (base or "error" in row):
                continue
            k = names.index(name) - (name == "by hand, no early stop")
            y = height + 0.8 * (k - (len(names) - 2) / 2) / len(names)
            draw_strategy(axes, y, name, row, base)
        draw_failures(axes, height, found)


def draw_strategy(axes, y, name, row, base):
    color, marker = STRATEGIES[name]
    if "error" in row:
        return
    share = row["peak"] / base
    face = "white" if row["fault"] else color
    axes.plot(
        [min(share, FAR)],
        [y],
        marker,
        color=color,
        markerfacecolor=face,
        markersize=5.5,
    )
    if share > FAR:
        text = f"{share:.1f} "
        axes.text(FAR - 0.03, y, text, fontsize=6, ha="right", va="center")


def draw_failures(axes, height, found):
    """What could not run, in words beside the markers; one text a model."""
    rows = found["rows"]
    failed = [n for n in STRATEGIES if "error" in rows.get(n, {})]
    if found["stock"]:
        text, y = "stock fails", height + 0.38
    else:
        text = "not possible:\n" + "\n".join(failed)
        y = height
    if failed:
        axes.text(FAR + 0.04, y, text, fontsize=6, va="center", color="#495057")
