"""docs/benchmarks.md, its chart, and the tables of the terminal."""

import json
import platform

import matplotlib
from rich.table import Table

matplotlib.use("Agg")

import chart  # noqa: E402

MIB = 2**20
PLAIN, STOCK = "plain", "stock full"
HEADS = ("peak", "kept", "arithmetic", "step time", "first step", "equal")
INTRODUCTION = """# Benchmarks

`make bench` (or `python benchmarks/run.py`) wrote this page; do not edit it.

Each model is trained by the same program: plain, with the settings of this
fork, with the engine's own checkpoint written by hand around each block
(`jax.checkpoint`, `tf.recompute_grad`, `torch.utils.checkpoint`), and by Keras
3.15.1 from the registry in `RematScope("full")`. What the columns say:

- *peak*: the most bytes alive in one step of `train_on_batch` beyond weights,
  optimizer and batch, and its share of the plain step. No clock is involved:
  XLA's own buffer assignment (JAX), calls of malloc (TensorFlow graphs), events
  of the CPU allocator (torch).
- *kept*: bytes that the forward pass keeps for the backward pass.
- *arithmetic*: operations, by XLA's cost analysis or torch's counter.
- *step time*: median of ratios to a plain step, both run in turn in one
  process. Wall times of this machine say nothing else.
- *first step*: processor time to trace, compile and run, as a ratio.
- *equal*: whether loss, state and the change of the weights agree with the
  plain model after a step: to 0.1 percent, or as far as two plain models do
  whose weights differ in the last digits (which ResNet50 at its first weights
  amplifies). A checkpoint by hand that ignores state does not.

On JAX all rows are compiled without the pass by which XLA:CPU undoes
rematerialization, so that they show what accelerators do. TensorFlow on CPU
tells neither kept bytes nor arithmetic.
"""


def read(folder):
    """All rows that were measured."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def groups(rows, backend):
    """Rows of each model: the fork's, then stock's with its own plain one."""
    found = {}
    for row in rows:
        if row["backend"] == backend:
            found.setdefault(row["model"], []).append(row)
    return found


def base_of(row, group):
    for other in group:
        if other["strategy"] == PLAIN and other["keras"] == row["keras"]:
            return other
    return row


def listed(group):
    """The rows to show: one plain row, then each strategy."""
    plain = [r for r in group if r["strategy"] == PLAIN][:1]
    return plain + [r for r in group if r["strategy"] != PLAIN]


def cells(row, base):
    if "error" in row:
        return ["-"] * 5 + [row["error"]]
    return [
        size(row["peak"], base.get("peak")),
        size(row["held"], base.get("held")),
        share(row["flops"], base.get("flops")),
        f"{row['time']:.2f}",
        f"{row['compile']:.2f}",
        "yes" if row["equal"] else "NO: wrong numbers",
    ]


def size(value, base):
    if value is None:
        return "-"
    return f"{value / MIB:.1f} MiB ({share(value, base)})"


def share(value, base):
    return f"{value / base:.2f}" if value is not None and base else "-"


def show(rows, backend, console):
    for model, group in groups(rows, backend).items():
        table = Table(title=f"{model}, {backend}")
        table.add_column("strategy")
        for head in HEADS:
            table.add_column(head, justify="right")
        for row in listed(group):
            table.add_row(row["strategy"], *cells(row, base_of(row, group)))
        console.print(table)


def markdown(rows):
    parts = [INTRODUCTION, "![Peak memory](benchmarks.png)\n"]
    for backend in sorted({r["backend"] for r in rows}):
        found = groups(rows, backend)
        engine = next(iter(found.values()))[0]["engine"]
        parts.append(f"## {backend} {engine}\n")
        for model, group in found.items():
            parts.append(f"### {model} on {backend}\n")
            parts.append("| strategy | " + " | ".join(HEADS) + " |")
            parts.append("| --- |" + " ---: |" * len(HEADS))
            for row in listed(group):
                values = cells(row, base_of(row, group))
                values = [v.replace("|", "\\|") for v in values]
                line = " | ".join([row["strategy"], *values])
                parts.append(f"| {line} |")
            parts.append("")
    versions = sorted({f"Keras {r['keras']}" for r in rows})
    python = f"Python {platform.python_version()}"
    parts.append(f"Versions: {', '.join([*versions, python])}.\n")
    return "\n".join(parts)


def write(rows, folder):
    if not rows:
        return
    folder.mkdir(exist_ok=True)
    (folder / "benchmarks.md").write_text(markdown(rows))
    chart.draw_shares(folder / "benchmarks.png", shares(rows))


def shares(rows):
    """Peak as a share of plain, by backend, model and strategy."""
    found = {}
    for backend in sorted({r["backend"] for r in rows}):
        for model, group in groups(rows, backend).items():
            for row in listed(group):
                peak = base_of(row, group).get("peak")
                if row["strategy"] == PLAIN or not peak or left_out(row):
                    continue
                values = found.setdefault(backend, {}).setdefault(model, {})
                value = row.get("peak")  # `None` says that it fails
                values[row["strategy"]] = value and value / peak
    return found


def left_out(row):
    return row.get("error", "").startswith("not run")
