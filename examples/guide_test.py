"""Executes the notebook, and compares it with its source."""

import os
import pathlib

import pytest

jupytext = pytest.importorskip("jupytext")
nbclient = pytest.importorskip("nbclient")

HERE = pathlib.Path(__file__).resolve().parent
BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")


def cells(notebook):
    return [(c.cell_type, c.source) for c in notebook.cells]


def test_notebook_is_made_from_its_source():
    source = jupytext.read(HERE / "remat_guide.py")
    notebook = jupytext.read(HERE / "remat_guide.ipynb")
    assert cells(source) == cells(notebook)


def test_what_is_stored_is_for_readers():
    """`make notebook` writes outputs: tables and pictures, no paths."""
    notebook = jupytext.read(HERE / "remat_guide.ipynb")
    outputs = [x for c in notebook.cells for x in c.get("outputs", ())]
    kinds = [kind for x in outputs for kind in x.get("data", ())]
    assert kinds.count("image/png") == 2 and "text/html" in kinds
    for output in outputs:
        assert output.output_type != "error" and output.get("name") != "stderr"
        text = output.get("text") or output["data"]["text/plain"]
        assert "/tmp/" not in text and "/home/" not in text
    assert (HERE / "remat_guide.ipynb").stat().st_size < 300_000


@pytest.mark.skipif(
    BACKEND not in ("jax", "tensorflow", "torch"), reason="no gradients"
)
def test_notebook_runs(tmp_path):
    notebook = jupytext.read(HERE / "remat_guide.ipynb")
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
