"""Which modules of a program are sent to workers: its own modules that are needed, but no installed ones."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from millstream.core.model.errors import SettingsError
from millstream.drivers.spark.driver import modules
from millstream.drivers.spark.driver.modules import own_modules, send_modules

Load = Callable[[str, str], Any]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Yield a function that writes files and imports a module; the imports are removed at the end."""
    monkeypatch.syspath_prepend(tmp_path)

    def loaded(name: str, **files: str) -> Any:
        for file, text in files.items():
            path = tmp_path / file.replace("__in__", "/")
            path.parent.mkdir(exist_ok=True)
            path.with_suffix(".py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    monkeypatch.setattr(modules, "_main_file", lambda: None)
    yield loaded  # type: ignore[misc]
    for name in [name for name in sys.modules if name.startswith("shop_")]:
        del sys.modules[name]


def test_a_sibling_module_and_its_imports_are_sent(load: Any, tmp_path: Path) -> None:
    shop = load(
        "shop_words",
        shop_words="import json, pyarrow, pytest\ndef split(x):\n    import shop_late\n    return x.split()",
        shop_late="from shop_deep.inner import one",
        shop_deep__in____init__="",
        shop_deep__in__inner="from . import other\none = 1",
        shop_deep__in__other="",
        shop_unused="",
    )
    assert own_modules(cloudpickle.dumps({"f": shop.split})) == {
        "shop_words": tmp_path / "shop_words.py",
        "shop_late": tmp_path / "shop_late.py",
        "shop_deep": tmp_path / "shop_deep",
    }


def test_a_module_in_a_zip_file_is_not_sent_but_its_imports_are(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ``spark-submit --py-files``: Spark sends the file, which may import modules beside the program."""
    archive = tmp_path / "given.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("shop_zipped/__init__.py", "from shop_zipped.inner import f")
        written.writestr("shop_zipped/inner.py", "import shop_beside\ndef f(x): return shop_beside.g(x)")
    monkeypatch.syspath_prepend(archive)
    zipped = load("shop_zipped", shop_beside="import shop_further\ndef g(x): return x", shop_further="")
    assert own_modules(cloudpickle.dumps(zipped.f)) == {
        "shop_beside": tmp_path / "shop_beside.py",
        "shop_further": tmp_path / "shop_further.py",
    }


def test_modules_that_a_function_of_the_main_program_uses_are_sent(load: Any, tmp_path: Path) -> None:
    """As in a notebook: the function is pickled by value, and names a module."""
    helper = load("shop_helper", shop_helper="def f(x): return x")
    space = {"__name__": "__main__", "shop_helper": helper}
    exec("def g(x): return shop_helper.f(x)", space)  # a cell of a notebook
    assert own_modules(cloudpickle.dumps(space["g"])) == {"shop_helper": tmp_path / "shop_helper.py"}


def test_installed_modules_are_not_sent() -> None:
    assert own_modules(cloudpickle.dumps((pytest.raises, zipfile.ZipFile, own_modules))) == {}


def test_an_archive_is_the_same_for_the_same_content(load: Any, tmp_path: Path) -> None:
    load("shop_pack", shop_pack__in____init__="", shop_pack__in__part="x = 1")
    (tmp_path / "shop_pack" / "names.csv").write_text("a,b")
    directories = {"shop_pack": tmp_path / "shop_pack"}
    archive = modules._archive(directories)
    assert zipfile.ZipFile(archive).namelist() == [
        "shop_pack/__init__.py",
        "shop_pack/names.csv",
        "shop_pack/part.py",
    ]
    assert modules._archive(directories) == archive
    (tmp_path / "shop_pack" / "names.csv").write_text("a,c")
    assert modules._archive(directories) != archive


def test_a_package_that_is_too_large_is_refused(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load("shop_large", shop_large__in____init__="x = 1")
    monkeypatch.setattr(modules, "_MOST_BYTES", 3)
    with pytest.raises(SettingsError, match=r"shop_large.*py_modules=\[\.\.\.\]"):
        modules._archive({"shop_large": tmp_path / "shop_large"})


def test_a_requested_module_that_does_not_exist_is_an_error() -> None:
    session: Any = None
    with pytest.raises(SettingsError, match=r"py_modules names 'shop_nowhere'"):
        send_modules(session, b"", ["shop_nowhere"])
