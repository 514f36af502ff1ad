"""Measure the structure of `src`: sizes, names, import circles, prose. `make house` prints the table.

The limits are those of CONTRIBUTING.md. A figure that has a limit lists each location that breaks it with `--all`.

`--check`, which `make check` runs, compares the limits with `house.json`, the locations that broke them when the check began. It
fails for a location that is not listed, has grown, or is better than listed, so that the file only shrinks: `--shrink` removes
what is repaired, and adds nothing.
"""

import ast
import io
import json
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import grimp

ROOT: Final = Path(__file__).parent.parent / "src"
BASELINE: Final = Path(__file__).with_name("house.json")
FILE_LINES: Final = 400
FUNCTION_LINES: Final = 40
POSITIONAL: Final = 5
FOLDER_MODULES: Final = 20
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class Module:
    """A source file, read and parsed once."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    def nodes(self, kind: type[Node]) -> Iterator[Node]:
        return (node for node in ast.walk(self.tree) if isinstance(node, kind))

    def functions(self) -> Iterator[Function]:
        yield from self.nodes(ast.FunctionDef)
        yield from self.nodes(ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table: how many, and where."""

    subject: str
    locations: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.locations)


def modules() -> list[Module]:
    """Read every module below `src`."""
    paths = sorted(ROOT.rglob("*.py"))
    return [Module(path, text := path.read_text(), ast.parse(text)) for path in paths]


def long_files(found: Iterable[Module]) -> Iterator[str]:
    return (f"{module.name}: {module.lines}" for module in found if module.lines > FILE_LINES)


def long_functions(found: Iterable[Module]) -> Iterator[str]:
    for module in found:
        for function in module.functions():
            if (length := _body_lines(function)) > FUNCTION_LINES:
                yield f"{module.name}: {function.name}: {length}"


def many_parameters(found: Iterable[Module]) -> Iterator[str]:
    for module in found:
        for function in module.functions():
            names = [a.arg for a in chain(function.args.posonlyargs, function.args.args)]
            if (count := len([name for name in names if name not in {"self", "cls"}])) > POSITIONAL:
                yield f"{module.name}: {function.name}: {count}"


def full_folders(found: Iterable[Module]) -> Iterator[str]:
    folders: dict[Path, int] = defaultdict(int)
    for module in found:
        if module.path.name != "__init__.py":
            folders[module.path.parent] += 1
    return (
        f"{folder.relative_to(ROOT)}: {count}" for folder, count in folders.items() if count > FOLDER_MODULES
    )


def repeated_files(found: Iterable[Module]) -> Iterator[str]:
    return _repeated(
        (module.path.name, module.name) for module in found if not module.path.name.startswith("__")
    )


def repeated_classes(found: Iterable[Module]) -> Iterator[str]:
    return _repeated((node.name, module.name) for module in found for node in module.nodes(ast.ClassDef))


def circles() -> Iterator[str]:
    """Groups of modules that import each other, imports in functions and under TYPE_CHECKING included.

    An import of a module also imports the packages around it.
    """
    graph = grimp.build_graph(next(path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()))
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            for package in packages_of(imported) - packages_of(module) - {module}:
                graph.add_import(importer=module, imported=package)
    seen: set[str] = set()
    for module in sorted(graph.modules - {graph_root(graph)}):
        circle = graph.find_upstream_modules(module) & graph.find_downstream_modules(module)
        if circle and module not in seen:
            seen |= circle | {module}
            yield f"{len(circle | {module})} modules: {', '.join(sorted(circle | {module}))}"


def packages_of(module: str) -> set[str]:
    parts = module.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts))}


def graph_root(graph: grimp.ImportGraph) -> str:
    return min(graph.modules, key=len)


def untyped_messages(found: Iterable[Module]) -> Iterator[str]:
    for module in found:
        for number, line in enumerate(module.text.splitlines(), 1):
            if "dict[str, Any]" in line:
                yield f"{module.name}:{number}"


def docstring_lines(found: Iterable[Module]) -> Iterator[str]:
    for module in found:
        for node in ast.walk(module.tree):
            if isinstance(node, _DOCUMENTED) and (docstring := ast.get_docstring(node)):
                yield from docstring.splitlines()


def comment_lines(found: Iterable[Module]) -> Iterator[str]:
    for module in found:
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
                yield f"{module.name}:{token.start[0]}"


def source_lines(found: Iterable[Module]) -> Iterator[str]:
    return chain.from_iterable(module.text.splitlines() for module in found)


Measure: TypeAlias = Callable[[Iterable[Module]], Iterator[str]]
"""The locations of a figure; those of a limit end with their size."""

LIMITS: Final[dict[str, Measure]] = {
    f"modules over {FILE_LINES} lines": long_files,
    f"functions over {FUNCTION_LINES} lines": long_functions,
    f"functions with more than {POSITIONAL} positional parameters": many_parameters,
    f"folders with more than {FOLDER_MODULES} modules": full_folders,
}

OVER_MODULES: Final[dict[str, Measure]] = {
    "lines in src": source_lines,
    "docstring lines": docstring_lines,
    "comment lines": comment_lines,
    **LIMITS,
    "file names that occur more than once": repeated_files,
    "class names that occur more than once": repeated_classes,
    "lines with dict[str, Any]": untyped_messages,
}


Broken: TypeAlias = Mapping[str, Mapping[str, int]]
"""By limit: each location that breaks it, with its size."""


def broken() -> Broken:
    """Return the locations that break a limit. A module in an import cycle has no size; each module of the cycle is a location."""
    found = modules()
    locations: dict[str, dict[str, int]] = {}
    for limit, measure in LIMITS.items():
        sizes = locations[limit] = {}
        for location in measure(found):
            name, _, size = location.rpartition(": ")
            sizes[name] = max(sizes.get(name, 0), int(size))
    in_circles = chain.from_iterable(circle.partition(": ")[2].split(", ") for circle in circles())
    return {**locations, "modules in import circles": dict.fromkeys(in_circles, 0)}


def compared(now: Broken, before: Broken) -> Iterator[str]:
    """Yield what has changed since the baseline was written."""
    for limit, sizes in now.items():
        known = before.get(limit, {})
        for location in sorted({**known, **sizes}):
            was, size = known.get(location), sizes.get(location)
            if was is None:
                yield f"{limit}: {location}{f' ({size})' if size else ''} is new; make it smaller"
            elif size is None or size < was:
                yield f"{limit}: {location} is better than {BASELINE.name} says; run `make house-shrink`"
            elif size > was:
                yield f"{limit}: {location} has grown from {was} to {size}; make it smaller"


def shrunk(now: Broken, before: Broken) -> Broken:
    """Return the baseline without repaired locations. It has no new ones, and none is larger than it was."""
    return {
        limit: {
            location: min(was, now[limit][location])
            for location, was in sorted(before.get(limit, {}).items())
            if location in now[limit]
        }
        for limit in now
    }


def figures() -> Iterator[Figure]:
    """Measure each row of the table."""
    found = modules()
    yield Figure("modules", tuple(module.name for module in found))
    for subject, measure in OVER_MODULES.items():
        yield Figure(subject, tuple(measure(found)))
    yield Figure("import circles", tuple(circles()))


def _body_lines(function: Function) -> int:
    """The lines of a function without its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def _repeated(names: Iterable[tuple[str, str]]) -> Iterator[str]:
    locations: dict[str, list[str]] = defaultdict(list)
    for name, location in names:
        locations[name].append(location)
    return (f"{name}: {', '.join(where)}" for name, where in sorted(locations.items()) if len(where) > 1)


def check(*, shrink: bool) -> str | None:
    """Compare the limits with the baseline; return what is to be done."""
    now, before = broken(), json.loads(BASELINE.read_text())
    if shrink:
        before = shrunk(now, before)
        BASELINE.write_text(json.dumps(before, indent=2) + "\n")
    return "\n".join(compared(now, before)) or None


def print_figures(*, every_location: bool) -> None:
    """Print the table."""
    for figure in figures():
        print(f"{figure.count:7,}  {figure.subject}")
        listed = figure.count < 200 and every_location
        print(
            *(f"           {location}" for location in figure.locations if listed),
            sep="\n",
            end="\n" if listed else "",
        )


def main(arguments: list[str]) -> str | None:
    if {"--check", "--shrink"}.intersection(arguments):
        return check(shrink="--shrink" in arguments)
    print_figures(every_location="--all" in arguments)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
