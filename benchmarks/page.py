"""docs/benchmarks.md, its chart, and the tables of the terminal."""

import json

import chart
import tables
from rich.table import Table

BACKENDS = ("jax", "tensorflow", "torch")
MODELS = (
    "gpt",
    "mlp",
    "resnet50",
    "efficientnet",
    "unet",
    "lstm",
    "residual1000",
    "kerashub",
)
MODES = {"tensorflow": ("gpt-eager", "gpt-xla")}
INTRODUCTION = """# Benchmarks

`make bench BACKEND=jax`, `tensorflow` and `torch` wrote this page; do not edit
it from `benchmarks/results`. `MODEL=gpt` measures one model; what was measured
with the code as it is committed now is not measured again, so a run that was
interrupted goes on where it stopped; `python benchmarks/run.py --again` starts
over.

Each model is trained by the same program: plain; with `model.remat = True`
(*full*); with one `keras.remat` around each block (*region per block*); with
the engine's own checkpoint around the same blocks (*by hand*:
`jax.checkpoint`, `tf.recompute_grad`, `torch.utils.checkpoint`); with memory
budgets and a policy; and by Keras 3.15.1 from the registry in
`RematScope("full")` (*stock full*). What the columns say:

- *peak*: the most bytes alive in one step of `train_on_batch` beyond weights,
  optimizer and batch, and its share of the plain step. No clock is involved:
  XLA's own buffer assignment (JAX), calls of malloc (TensorFlow), events of
  the CPU allocator (torch).
- *kept*: bytes that the forward pass keeps for the backward pass.
- *arithmetic*: operations, by XLA's cost analysis, or of matrix products and
  convolutions in TensorFlow's graph and by torch's counter.
- *step time*: ratio to a plain step, the median over rounds in which each
  strategy makes a step, and its standard error. It is processor time on one
  core, as other programs ran on this machine.
- *first step*: processor time to plan, trace and compile, and its ratio to the
  plain step's where that compiles too.
- *equal*: whether losses, weights, statistics and seeds agree with the plain
  model after two steps: to 0.01 percent of what training changed, or as far as
  rounding explains (`benchmarks/equal.py`). A checkpoint by hand that ignores
  state does not.

On JAX all rows are compiled without the pass by which XLA:CPU undoes
rematerialization, so that they show what accelerators do. Some steps there
are faster than the plain one although they compute more; why was not found.
TensorFlow runs
without oneDNN, whose buffers malloc does not see. `gpt-eager` is the GPT with
`run_eagerly=True`, `gpt-xla` that with `jit_compile=True`. The models are those
of `benchmarks/models.py`: `gpt` has 12 decoder blocks, `mlp` 64 Dense layers,
`lstm` two layers of 128 steps, `residual1000` 500 residual blocks of two
convolutions, so 1000 layers; `kerashub` is a small BERT of KerasHub.
"""
BESIDE = """## A region per block beside the engine's own checkpoint

Ratios of *region per block* to *by hand*, both around the same blocks. Wanted:
a peak of at most 1.02, a step of at most 1.05 where the step is compiled and
1.10 where it is eager; *not clear* where that limit is within the standard
error of the time.
"""
CHAIN = """## Tracing and compiling 64 regions

Processor time to trace and compile a chain of 200 layers of eight units in 64
regions, as a ratio to the plain chain; each is the fastest of three.
"""
CALLS = """## Python in a call

One Dense(8) on two rows, eager: the fastest of many calls. On JAX each
gradient is traced anew; in a compiled step none of this is left.
"""


def planned():
    """All there is to measure: backend, model, whether stock Keras."""
    tasks = []
    for backend in BACKENDS:
        for model in (*MODELS, "calls"):
            tasks += [(backend, model, False), (backend, model, True)]
        tasks.append((backend, "chain", False))
        tasks += [(backend, model, False) for model in MODES.get(backend, ())]
    return tasks


def path_of(folder, backend, model, stock):
    return folder / f"{backend}-{model}{'-stock' if stock else ''}.json"


def read(folder):
    """What was measured, in the order of the plan."""
    paths = [path_of(folder, *task) for task in planned()]
    return [json.loads(p.read_text()) for p in paths if p.exists()]


def missing(folder):
    """What was not measured, or not to its end: a line for each backend."""
    lines = {}
    for backend, model, stock in planned():
        path = path_of(folder, backend, model, stock)
        label = f"{model} with stock Keras" if stock else model
        if not path.exists():
            lines.setdefault(backend, []).append(label)
        elif not json.loads(path.read_text())["complete"]:
            lines.setdefault(backend, []).append(f"{label} (interrupted)")
    return [f"{b}: {', '.join(labels)}" for b, labels in lines.items()]


def models_of(all_found, backend):
    """Lists of the fork's and stock's results, by model."""
    groups = {}
    for found in all_found:
        if found["backend"] == backend and found["model"] != "calls":
            groups.setdefault(found["model"], []).append(found)
    return groups


def markdown(all_found, left_out):
    parts = [INTRODUCTION, versions(all_found)]
    parts.append("![Peak memory](benchmarks.png)\n")
    parts += [BESIDE, tables.markdown(tables.beside_table(all_found))]
    parts += [CHAIN, tables.markdown(tables.chain_table(all_found))]
    parts += [CALLS, tables.markdown(tables.calls_table(all_found))]
    for backend in BACKENDS:
        for model, group in models_of(all_found, backend).items():
            parts.append(f"## {model} on {backend}\n")
            parts.append(tables.markdown(tables.model_table(group)))
    if left_out:
        parts.append("## Not measured yet\n")
        parts.append("\n".join(f"- {line}" for line in left_out) + "\n")
    return "\n".join(parts)


def versions(all_found):
    told = {f"Keras {x['keras']}" for x in all_found}
    told |= {f"{x['backend']} {x['engine']}" for x in all_found}
    told |= {f"Python {x['python']}" for x in all_found}
    commits = {x["commit"] for x in all_found if x["commit"]}
    text = f"Versions: {', '.join(sorted(told))}."
    if commits:
        text += f" Commits: {', '.join(sorted(commits))}."
    return text + "\n"


def write(folder, docs):
    """Writes the page and the chart from whatever is there."""
    all_found = read(folder)
    if not all_found:
        return
    docs.mkdir(exist_ok=True)
    text = markdown(all_found, missing(folder))
    (docs / "benchmarks.md").write_text(text)
    groups = {b: models_of(all_found, b) for b in BACKENDS}
    chart.draw_shares(docs / "benchmarks.png", groups)


def show(folder, backends, console):
    all_found = read(folder)
    for backend in backends:
        for model, group in models_of(all_found, backend).items():
            heads, lines = tables.model_table(group)
            table = Table(title=f"{model} on {backend}")
            for head in heads:
                table.add_column(head)
            for line in lines:
                table.add_row(*line)
            console.print(table)
