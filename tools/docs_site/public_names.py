"""The API reference: a directive that documents public names, and links from the places of definition to the public names.

Public names are defined in modules that users do not import. Docstrings and signatures name them there; their links lead to the entry
of the public name. Types in signatures that are not public stay text.
"""

from __future__ import annotations

import builtins
import inspect
from functools import cache
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

import millstream

_DATA_MODULES = (
    "millstream.core.model.serdes",
    "millstream.core.model.windows",
    "millstream.core.topology.processor",
)
"""Where values are documented by the string behind them, besides the module that gives them."""


def connect(app: Sphinx) -> None:
    """Add the directive, and say how signatures are shown and names are resolved."""
    app.add_directive("public-names", _PublicNames)
    app.connect("autodoc-process-signature", _signature)
    app.connect("missing-reference", _resolve)


class _PublicNames(SphinxDirective):
    """Documents the names in its content; its argument is a public module, without one they are names of ``millstream``."""

    optional_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        module = ".".join(["millstream", *self.arguments])
        return self.parse_text_to_nodes(
            "\n".join(_entry(module, name.strip()) for name in self.content if name.strip())
        )


def _entry(module: str, name: str) -> str:
    path = f"{module}.{name}"
    value = _value_of(path)
    if inspect.isclass(value):
        return f".. auto{'exception' if issubclass(value, BaseException) else 'class'}:: {path}\n"
    if inspect.isroutine(value):
        return f".. autofunction:: {path}\n"
    text = "\n   ".join(_words_behind(_value_of(module).__name__, name))
    return f".. py:data:: {path}\n\n   {text}\n"


def _value_of(path: str) -> Any:
    value: Any = millstream
    for name in path.split(".")[1:]:
        value = getattr(value, name, None)
    return value


def _words_behind(module: str, name: str) -> list[str]:
    """Return the lines of the string behind the assignment of a value."""
    for origin in (module, *_DATA_MODULES):
        if lines := ModuleAnalyzer.for_module(origin).find_attr_docs().get(("", name)):
            return lines
    return []


def _signature(
    app: Sphinx, kind: str, name: str, value: Any, options: object, signature: str, returned: str
) -> Any:
    """Leave out the arguments of classes that users do not create: their docstrings do not describe any."""
    is_created = any(words in (value.__doc__ or "") for words in ("Args:", "Attributes:", "Example:"))
    return ("", returned) if kind in ("class", "exception") and not is_created else None


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.Element
) -> nodes.Element | None:
    if node.get("refdomain") != "py" or hasattr(builtins, node["reftarget"]):  # bytes is not ms.serdes.bytes
        return None
    if target := _public_names(env).get(node["reftarget"]):
        return env.domains.python_domain.resolve_xref(
            env, node["refdoc"], app.builder, "obj", target, node, shown
        )
    return shown if "refexplicit" not in node else None


@cache
def _public_names(env: BuildEnvironment) -> dict[str, str]:
    """Return the documented names by the names under which they are defined, and by their last words."""
    found: dict[str, str] = {}
    for path in env.domains.python_domain.objects:
        value = _value_of(path)
        found.setdefault(path.rpartition(".")[2], path)
        if inspect.isclass(value) or inspect.isfunction(value):
            found.setdefault(f"{value.__module__}.{value.__qualname__}", path)
    return found
