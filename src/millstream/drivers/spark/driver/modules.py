"""Sends the user's own modules to Python workers that cannot import them.

A pickled function refers to its module by name. The Python workers of a local session created here import the module from the program's
path. Workers on another host, or in a session that was started in another directory, cannot. The modules that define functions, and the
modules that these import, are therefore sent in one zip file, like ``spark-submit --py-files``. Installed packages are not sent.

Rejected: pickling functions by value. Module globals often cannot be pickled (locks, clients). If they can, each function would have its
own copy, and a class would be a different class in each pickle.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import pickletools
import site
import sys
import sysconfig
import zipfile
from collections.abc import Collection, Iterable, Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from zipimport import zipimporter

from pyspark import SparkFiles
from pyspark.sql import SparkSession

from millstream.core.model.errors import SettingsError
from millstream.drivers.private import process_directory
from millstream.drivers.spark.driver.launch import is_local

_MOST_BYTES: Final = 64 << 20
_EVERYWHERE: Final = frozenset({"millstream", "pyspark", "__main__"})
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def send_modules(session: SparkSession, pickled: bytes, wanted: Collection[str] | None) -> None:
    """Send the program's own modules that pickled functions need to the Python workers of a session.

    Args:
        session: The session, classic or of Spark Connect.
        wanted: Modules and packages to send. None means those of the functions, with their imports.

    Raises:
        SettingsError: If a wanted module cannot be found, or the modules are too large together.
    """
    modules = own_modules(pickled) if wanted is None else _paths_of_named(wanted)
    visible = _importable_by_workers(session)
    paths = {name: path for name, path in modules.items() if path.parent not in visible}
    if not paths:
        return
    archive = _archive(paths)
    if not is_classic(session):
        session.addArtifacts(str(archive), pyfile=True)
    elif archive.name not in (session.sparkContext._python_includes or ()):
        session.sparkContext.addPyFile(str(archive))
        # This program continues with its own files, which it may reload.
        sys.path.remove(str(Path(SparkFiles.getRootDirectory()) / archive.name))


def own_modules(pickled: bytes) -> dict[str, Path]:
    """Return the paths of the program's own top-level modules that a pickle needs, with their imports.

    Functions of the main program are pickled by value, so its own imports are included.
    """
    main = _main_file()
    return _closure(_named_in(pickled) | (_imports(main.read_bytes()) if main and main.is_file() else set()))


def _closure(names: Collection[str]) -> dict[str, Path]:
    """Return the paths of the program's own modules among the names, with their imports.

    A module in a zip file is not sent, because the user has given the file to Spark. Its imports may be elsewhere.
    """
    modules: dict[str, Path] = {}
    seen: set[str] = set()
    left = set(names)
    while left:
        seen.add(name := left.pop())
        path = _own_path(name)
        sources = _zipped_sources(name)
        if path is not None:
            modules[name] = path
            sources = (file.read_bytes() for file in _files(path) if file.suffix == ".py")
        left |= {other for source in sources for other in _imports(source)} - seen
    return modules


def _paths_of_named(names: Collection[str]) -> dict[str, Path]:
    paths = {name: _path_of(name) for name in names}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        raise SettingsError(
            f"py_modules names {', '.join(map(repr, missing))}, which this program cannot import as a Python file or a package; "
            "give top-level names, as in py_modules=['orders']"
        )
    return {name: path for name, path in paths.items() if path is not None}


def _named_in(pickled: bytes) -> set[str]:
    """Return the top-level modules that a pickle may refer to: each text in the pickle that names a loaded module."""
    texts = {argument for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str)}
    return {text.partition(".")[0] for text in texts.intersection(sys.modules)}


def _imports(source: bytes) -> set[str]:
    """Return the top-level modules that a module imports, at any position."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):  # for example a template, which is never imported
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [
        node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level
    ]
    return {name.partition(".")[0] for name in names}


def _main_file() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if file is None or _is_installed(Path(file).resolve()) else Path(file)


def _own_path(name: str) -> Path | None:
    """Return the path of one of the program's own top-level modules, or None for other modules."""
    if name in _EVERYWHERE or name in sys.stdlib_module_names:
        return None
    path = _path_of(name)
    return None if path is None or _is_installed(path) else path


def _spec(name: str) -> ModuleSpec | None:
    spec: ModuleSpec | None = getattr(sys.modules.get(name), "__spec__", None)
    try:
        return find_spec(name) if spec is None else spec
    except (ImportError, ValueError):
        return None


def _zipped_sources(name: str) -> Iterator[bytes]:
    """Return the sources of one of the program's own top-level modules in a zip file, or none if it is elsewhere."""
    loader = None if name in _EVERYWHERE else getattr(_spec(name), "loader", None)
    if not isinstance(loader, zipimporter) or _is_installed(Path(loader.archive).resolve()):
        return
    package, file = f"{loader.prefix}{name}/", f"{loader.prefix}{name}.py"
    with zipfile.ZipFile(loader.archive) as archive:
        for member in archive.namelist():
            if member == file or (member.startswith(package) and member.endswith(".py")):
                yield archive.read(member)


def _path_of(name: str) -> Path | None:
    """Return the file or directory of a top-level module, or None if the module cannot be sent."""
    spec = _spec(name)
    if spec is None:
        return None
    paths = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    path = Path(paths[0]).resolve()
    return path if path.is_dir() or (path.is_file() and path.suffix == ".py") else None


def _is_installed(path: Path) -> bool:
    installed = {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    return any(path.is_relative_to(Path(directory).resolve()) for directory in installed)


def _importable_by_workers(session: SparkSession) -> set[Path]:
    """Return the directories from which Python workers can already import. In a local session, they inherit them from its JVM."""
    if not is_classic(session) or not is_local(str(session.sparkContext.master)):
        return set()
    system: Any = session.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    inherited = (system.getenv("PYTHONPATH") or "").split(os.pathsep)
    return {Path(path).resolve() for path in (*inherited, system.getProperty("user.dir")) if path}


def is_classic(session: SparkSession) -> bool:
    """Return whether the Spark driver belongs to this program, not to a Spark Connect server."""
    return "connect" not in type(session).__module__


def _archive(paths: dict[str, Path]) -> Path:
    """Write a zip file named by its content, so that the same content is sent only once."""
    content, size = io.BytesIO(), 0
    with zipfile.ZipFile(content, "w") as archive:
        for file, inside in sorted(_members(paths.values()), key=lambda member: member[1]):
            size += file.stat().st_size
            if size > _MOST_BYTES:
                raise SettingsError(
                    f"the modules that are sent to Spark's workers, {', '.join(sorted(paths))}, are larger than "
                    f"{_MOST_BYTES >> 20} MiB. Install them on the hosts of the workers, or send only those that are "
                    "needed: py_modules=[...]"
                )
            archive.writestr(zipfile.ZipInfo(inside, _EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    path = process_directory() / f"millstream-modules-{digest[:16]}.zip"
    path.write_bytes(content.getvalue())
    return path


def _members(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    for path in paths:
        for file in _files(path):
            yield file, file.relative_to(path.parent).as_posix()


def _files(path: Path) -> Iterator[Path]:
    """Return the files of a module or package, without caches of Python and tools."""
    if path.is_file():
        yield path
        return
    for directory, below, names in os.walk(path):
        below[:] = [name for name in below if name != "__pycache__" and not name.startswith(".")]
        yield from (Path(directory, name) for name in names if not name.startswith("."))
