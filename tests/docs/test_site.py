"""The documentation site has every page and every public name. ``make docs`` builds it, and fails on broken links."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections import Counter
from typing import Any

import pytest

import millstream as ms

from .markdown import PAGES, ROOT, blocks_of, name_of

API = sorted((ROOT / "docs/api").glob("*.rst"))


@pytest.fixture(scope="module")
def site() -> Any:
    """The extension of Sphinx."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("docs_site")
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_every_page_is_in_the_table_of_contents_once(site: Any) -> None:
    entries = Counter(
        page for tables in site.navigation.contents().values() for pages in tables.values() for page in pages
    )
    pages = {name_of(page).removesuffix(".md") for page in PAGES}
    assert set(entries) == {*pages, site.navigation.API} - {site.navigation.FIRST}
    assert set(entries.values()) == {1}


def test_sidebar_sections_are_the_headings_of_the_index(site: Any) -> None:
    assert list(site.navigation.contents()[site.navigation.FIRST]) == [
        "",
        "Tutorial",
        "How-to",
        "Concepts",
        "Reference",
        "Project",
    ]


def test_sphinx_finds_every_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("conf", ROOT / "docs/conf.py")
    assert spec is not None
    assert spec.loader is not None
    conf: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)

    from sphinx.project import Project

    project = Project(ROOT, {".md": "markdown", ".rst": "restructuredtext"})
    discovered = project.discover(exclude_paths=conf.exclude_patterns, include_paths=conf.include_patterns)
    assert discovered == {page.relative_to(ROOT).with_suffix("").as_posix() for page in [*PAGES, *API]}


def documented() -> dict[str, list[str]]:
    """Return the names in the API reference by public module, without the package name."""
    names: dict[str, list[str]] = {}
    for page in API:
        for module, listed in re.findall(
            r"^\.\. public-names::(.*)\n\n((?:   \w+\n)+)", page.read_text(), re.MULTILINE
        ):
            names.setdefault(module.strip(), []).extend(listed.split())
    return names


def defined_names(module: Any) -> set[str]:
    """Return the functions and classes that a module defines for its users."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    }


def test_the_api_reference_has_every_public_name() -> None:
    names = documented()
    assert all(len(listed) == len(set(listed)) for listed in names.values())
    public = {module: set(listed) for module, listed in names.items()}
    values = {name for name in ms.__all__ if not inspect.ismodule(getattr(ms, name))}
    assert public.pop("") == values - defined_names(ms.errors)
    modules = {name for name in ms.__all__ if inspect.ismodule(getattr(ms, name))}
    assert set(public) == modules
    for module in ("secret", "spark", "stores", "testing", "timestamps", "tracing"):
        assert public[module] == set(getattr(ms, module).__all__), module
    assert public["errors"] == {
        name for name in defined_names(ms.errors) if inspect.isclass(getattr(ms.errors, name))
    }
    serdes = {
        name
        for name, value in vars(ms.serdes).items()
        if isinstance(value, ms.Serde) and not name.startswith("_")
    }
    assert public["serdes"] >= serdes | defined_names(ms.serdes)


def test_diagrams_are_drawn_as_self_contained_svg(site: Any) -> None:
    blocks = [block for page in PAGES for block in blocks_of(page) if block.info == ("mermaid",)]
    drawn = [site.diagrams.drawn(block.text, number) for number, block in enumerate(blocks)]
    assert len(drawn) >= 2
    for picture in drawn:
        assert picture.startswith("<svg")
        assert not re.search(r"(src|href)=.?https?:|url\(.?https?:|@import", picture)
