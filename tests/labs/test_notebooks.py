"""The notebooks of the labs run from top to bottom in a real kernel."""

from pathlib import Path

import pytest

RECORDED = {"straggler": "stragglers", "overlap": "overlaps"}
"""Notebooks that get the rehearsals of a fixture: the commands of the labs make their own."""

REPLACED = """
from pathlib import Path
from allpull.labs import notebook
from allpull.schema import labs

text = Path("result.json").read_text("utf-8")
notebook.run_{lab} = lambda lab, out: labs.{kind}.model_validate_json(text)
"""
"""A cell before the first of such a notebook."""

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "docs/labs").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, request):
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # outputs are the reader's
    if path.stem in RECORDED:
        result = request.getfixturevalue(RECORDED[path.stem])
        (tmp_path / "result.json").write_text(result.model_dump_json(by_alias=True), "utf-8")
        cell = REPLACED.format(lab=path.stem, kind=type(result).__name__)
        notebook.cells.insert(0, nbformat.v4.new_code_cell(cell))
    client(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("text/html" in output.get("data", {}) for output in shown)
