"""Writes remat_guide.ipynb: the cells of remat_guide.py, and what they print.

`make notebook` runs it on the installed wheel.
"""

import os
import pathlib
import re
import tempfile

import jupytext
import nbclient

HERE = pathlib.Path(__file__).resolve().parent
SOURCE, NOTEBOOK = HERE / "remat_guide.py", HERE / "remat_guide.ipynb"

LOG = re.compile(r"WARNING: All log messages before absl|[IWE]\d{4} |USDT:")


def execute(notebook):
    """Fills in the outputs, made in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook,
            timeout=300,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        client.execute()
        for cell in code(notebook):
            cell.outputs = [x for x in cell.outputs if not logs(x)]
        refuse(notebook, [folder, str(HERE.parent), os.path.expanduser("~")])


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def logs(output):
    """Whether it is of C++ libraries that are imported and do nothing here."""
    rows = output.get("text", "").splitlines()
    return output.get("name") == "stderr" and all(map(LOG.match, rows))


def refuse(notebook, paths):
    """Warnings, and where this machine has its files, are not for readers."""
    for cell in code(notebook):
        for output in cell.outputs:
            text = str(output)
            if output.get("name") == "stderr" or any(p in text for p in paths):
                raise SystemExit(f"not to be stored, of {cell.source}: {text}")


def main():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    notebook = jupytext.read(SOURCE)
    for k, cell in enumerate(notebook.cells):
        cell.id = f"cell-{k}"  # random ones would differ each time
    execute(notebook)
    notebook.metadata.pop("language_info", None)
    jupytext.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
