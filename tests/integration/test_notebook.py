"""The notebook of the examples, executed cell by cell as Jupyter does, with some cells run twice."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from proofs.sizes import sized

pytestmark = [pytest.mark.broker, pytest.mark.spark]
NOTEBOOK = Path(__file__).parents[2] / "examples/notebook/word_count.ipynb"


class Notebook:
    """The notebook with a kernel; tests select cells by words in their source."""

    def __init__(self, client: NotebookClient) -> None:
        self._client = client
        self.restart()

    def restart(self) -> None:
        """Begin again with the first cell, in the same kernel."""
        self._cells = [
            (index, cell) for index, cell in enumerate(self._client.nb.cells) if cell.cell_type == "code"
        ]

    def run_to(self, words: str) -> dict[str, str]:
        """Run cells up to the next one that contains these words; return its outputs by content type."""
        while self._cells:
            index, cell = self._cells.pop(0)
            output = self._run(index, cell)
            if words in cell.source:
                return output
        raise AssertionError(f"no more cell has {words!r}")

    def run_again(self, words: str) -> dict[str, str]:
        """Run the first cell with these words once more."""
        index, cell = next(
            (index, cell) for index, cell in enumerate(self._client.nb.cells) if words in cell.source
        )
        return self._run(index, cell)

    def _run(self, index: int, cell: Any) -> dict[str, str]:
        shown: dict[str, str] = {}
        for output in self._client.execute_cell(cell, index).outputs:
            if output.output_type == "stream":
                shown[output.name] = shown.get(output.name, "") + output.text
            else:
                shown |= output.data
        return shown


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    for name in [name for name in os.environ if name.startswith("MILLSTREAM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    read = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(read, timeout=280, resources={"metadata": {"path": str(tmp_path)}})
    with client.setup_kernel():
        yield Notebook(client)


@pytest.mark.timeout(900)
def test_all_cells_run_in_order_and_some_can_be_run_again(notebook: Notebook) -> None:
    notebook.run_to("lab.deploy(topology)")
    notebook.restart()
    run_all(notebook)  # without a close() before it
    notebook.restart()
    sized(run_the_beginning, run_all)(notebook)  # after a close()


def run_the_beginning(notebook: Notebook) -> None:
    assert "words: running" in notebook.run_to("lab.deploy(topology)")["text/html"]
    assert counts(notebook.run_to("lab.entries"))["be"] == "2"
    notebook.run_again("lab.close()")


def run_all(notebook: Notebook) -> None:
    assert "<svg" in notebook.run_to("topology = word_count()")["text/html"]
    assert "words: running" in notebook.run_to("lab.deploy(topology)")["text/html"]
    again = notebook.run_again("lab.deploy(topology)")
    assert "words: running" in again["text/html"]
    assert "stderr" not in again  # nothing was restarted

    assert counts(notebook.run_to("lab.entries"))["be"] == "2"
    assert notebook.run_to('.get("to")')["text/plain"] == "2"
    notebook.run_again("To be or not")
    assert notebook.run_again('.get("to")')["text/plain"] == "4"
    assert "4 records</text>" in notebook.run_to("lab")["text/html"]

    assert notebook.run_to("lab.preview")["text/plain"] == "keeps counts"
    edited = counts(notebook.run_to("lab.deploy(louder)"))
    assert (edited["to"], edited["TO"]) == ("4", "1")
    assert notebook.run_to("lab.pause()")["stdout"] == "['lines']\n1\n"
    notebook.run_to("lab.close()")
    notebook.run_again("lab.close()")


def counts(shown: dict[str, str]) -> dict[str, str]:
    """Return the rows of a table of keys and values."""
    return dict(re.findall("<tr><td>(.*?)</td><td>(.*?)</td></tr>", shown["text/html"]))


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert all(
        cell.outputs == [] and cell.execution_count is None for cell in cells if cell.cell_type == "code"
    )
