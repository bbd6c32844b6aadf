"""The files in which measurements are kept: one for a model and a backend."""

import importlib
import json
import pathlib
import platform
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Output:
    """Writes what is known so far after each row.

    Args:
        options: Namespace with `backend`, `model`, `stock` and `out`.
    """

    def __init__(self, options):
        self.path = pathlib.Path(options.out)
        self.head = {
            "backend": options.backend,
            "model": options.model,
            "stock": options.stock,
            "keras": importlib.import_module("keras").__version__,
            "engine": importlib.import_module(options.backend).__version__,
            "python": platform.python_version(),
            "commit": told_by_git("rev-parse", "--short", "HEAD"),
            "code": code_of(options.stock),
        }
        self.rows = {}

    def add(self, strategy, row):
        self.rows[strategy] = row
        self.write(False)

    def done(self):
        self.write(True)

    def write(self, complete):
        text = json.dumps(
            self.head | {"complete": complete, "rows": self.rows}, indent=1
        )
        part = self.path.with_suffix(".part")
        part.write_text(text)
        part.replace(self.path)


def code_of(stock):
    """Names the code that is measured: our patch set, or upstream's pin."""
    what = "upstream.txt" if stock else "keras"
    return told_by_git("rev-parse", f"HEAD:{what}")


def is_done(path, stock):
    """Whether a file has all rows, of the code as it is committed now."""
    if not path.exists():
        return False
    found = json.loads(path.read_text())
    return found["complete"] and found["code"] == code_of(stock)


def told_by_git(*arguments):
    """What git says of this repository; empty outside of one."""
    command = ["git", *arguments]
    try:
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return told.stdout.strip()


def failure(error):
    """The error in one line, the innermost one if one was wrapped."""
    text = re.sub(r"\x1b\[\d+m", "", str(error))
    text = text.rpartition("Exception encountered:")[2] or text
    text = re.sub(r"Exception encountered when calling \S+", "", text)
    text = " ".join(text.split("Arguments received")[0].split())
    return {"error": f"{type(error).__name__}: {text[:200]}"}
