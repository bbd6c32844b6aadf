"""Measures models under many strategies, and writes docs/benchmarks.md.

    python benchmarks/run.py [--backend jax] [--model gpt] [--no-stock]

Each model and backend has its own process, stock Keras 3.15.1 one of its own
with the same program. Rows are kept in `build/bench`, one file for each model
and backend, so that the page holds whatever was measured last.
"""

import argparse
import os
import pathlib
import subprocess
import sys

import page
from rich.console import Console

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
ROWS = ROOT / "build" / "bench"
STOCK = ROOT / "build" / "stock"
BACKENDS = ("jax", "tensorflow", "torch")
MODELS = (
    "gpt",
    "mlp",
    "resnet50",
    "efficientnet",
    "unet",
    "lstm",
    "deep200",
    "kerashub",
)


def install_stock():
    """Keras as its own project ships it, beside what is installed."""
    if (STOCK / "keras").is_dir():
        return
    pin = (ROOT / "upstream.txt").read_text().split()[0]
    options = ["-q", "--no-deps", "--target", str(STOCK)]
    pip = [sys.executable, "-m", "pip", "install", *options, pin]
    subprocess.run(pip, check=True)


def measure(backend, model, stock, seconds):
    """Runs `worker.py`; its rows replace the former ones.

    Returns:
        Whether the worker came to its end.
    """
    kind = "stock" if stock else "ours"
    out = ROWS / f"{backend}-{model}-{kind}.jsonl"
    out.unlink(missing_ok=True)
    command = [sys.executable, HERE / "worker.py", backend, model, out]
    command += ["--seconds", str(seconds)]
    environ = dict(os.environ)
    if stock:
        command.append("--stock")
        environ["PYTHONPATH"] = str(STOCK)
    log = out.with_suffix(".log")
    with open(log, "w") as f:
        try:
            done = subprocess.run(
                command,
                env=environ,
                stdout=f,
                stderr=f,
                timeout=4 * seconds + 120,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", nargs="*", default=BACKENDS)
    parser.add_argument(
        "--model", nargs="*", default=MODELS, help="also: deep1000"
    )
    parser.add_argument("--no-stock", action="store_true")
    parser.add_argument("--only-page", action="store_true")
    parser.add_argument(
        "--seconds", type=float, default=180, help="for each model"
    )
    return parser.parse_args()


def main():
    given = options()
    console = Console()
    ROWS.mkdir(parents=True, exist_ok=True)
    if not (given.no_stock or given.only_page):
        install_stock()
    tasks = [
        (b, m, stock)
        for b in given.backend
        for m in given.model
        for stock in ((False,) if given.no_stock else (False, True))
    ]
    for backend, model, stock in () if given.only_page else tasks:
        label = f"{model} on {backend}{', stock Keras' if stock else ''}"
        with console.status(f"Measuring {label} ..."):
            done = measure(backend, model, stock, given.seconds)
        console.print(f"{'done  ' if done else 'FAILED'}  {label}")
    rows = page.read(ROWS)
    for backend in given.backend:
        page.show(rows, backend, console)
    page.write(rows, ROOT / "docs")
    console.print(f"Wrote {ROOT / 'docs' / 'benchmarks.md'}")


if __name__ == "__main__":
    main()
