"""Measures models under many strategies, and writes docs/benchmarks.md.

    python benchmarks/run.py [--backend jax] [--model gpt] [--again]

Each model and backend has its own process, stock Keras 3.15.1 one of its own
with the same program. What they find is kept in `benchmarks/results`, one file
for each, and not measured a second time while `keras/` is committed as it was,
unless `--again` asks for it. So a run that was interrupted goes on where it
stopped; the page is written anew after each model.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

import page
import results
from rich.console import Console

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
FOUND = HERE / "results"
LOGS = ROOT / "build" / "bench"
STOCK = ROOT / "build" / "stock"
LONGEST = 1500  # seconds for one model
QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "OMP_NUM_THREADS": "1",
    # malloc keeps what is freed: first touches of pages are not what a step
    # costs, and devices have pools of their own.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
}


def install_stock():
    """Keras as its own project ships it, beside what is installed."""
    if (STOCK / "keras").is_dir():
        return
    pin = (ROOT / "upstream.txt").read_text().split()[0]
    options = ["-q", "--no-deps", "--target", str(STOCK)]
    pip = [sys.executable, "-m", "pip", "install", *options, pin]
    subprocess.run(pip, check=True)


def measure(backend, model, stock):
    """Runs `worker.py` or `calls.py`.

    Returns:
        A line that says how it ended.
    """
    out = page.path_of(FOUND, backend, model, stock)
    program = HERE / ("calls.py" if model == "calls" else "worker.py")
    command = [sys.executable, program, backend, model, out]
    environ = os.environ | QUIET
    if stock:
        command.append("--stock")
        paths = [str(STOCK), environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    log = LOGS / f"{out.stem}.log"
    start = time.monotonic()
    with open(log, "w") as f:
        try:
            code = subprocess.run(
                command, env=environ, stdout=f, stderr=f, timeout=LONGEST
            ).returncode
        except subprocess.TimeoutExpired:
            return f"took longer than {LONGEST} s"
    if code:
        return f"[red]ended with {code}, see {log.relative_to(ROOT)}[/red]"
    return f"{time.monotonic() - start:.0f} s"


def is_done(backend, model, stock):
    return results.is_done(page.path_of(FOUND, backend, model, stock), stock)


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", nargs="*", default=page.BACKENDS)
    parser.add_argument("--model", nargs="*", help="a name of models.py, calls")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only-page", action="store_true")
    return parser.parse_args()


def main():
    given = options()
    console = Console()
    for folder in (FOUND, LOGS):
        folder.mkdir(parents=True, exist_ok=True)
    tasks = [
        (backend, model, stock)
        for backend, model, stock in page.planned()
        if backend in given.backend
        and (not given.model or model in given.model)
        and (given.again or not is_done(backend, model, stock))
    ]
    tasks = [] if given.only_page else tasks
    if any(stock for *_, stock in tasks):
        install_stock()
    for k, (backend, model, stock) in enumerate(tasks):
        kind = ", stock Keras" if stock else ""
        label = f"{k + 1}/{len(tasks)}  {model} on {backend}{kind}"
        with console.status(f"{label} ..."):
            ended = measure(backend, model, stock)
        console.print(f"{label}: {ended}")
        page.write(FOUND, ROOT / "docs")
    page.write(FOUND, ROOT / "docs")
    page.show(FOUND, given.backend, console)
    console.print(f"Wrote {ROOT / 'docs' / 'benchmarks.md'}")


if __name__ == "__main__":
    main()
