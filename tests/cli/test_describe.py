"""``millstream describe``, and how commands find the topology of a program and report missing packages."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.edge.cli import main
from millstream.edge.cli.commands import DescribeFormat, app, described
from millstream.edge.cli.program_targets import TargetError, application_of, topology_of

ROOT = Path(__file__).parents[2]
PROGRAM = """
import millstream as ms

builder = ms.StreamsBuilder()
builder.stream("in").to("out")
topology = builder.build()
app = ms.Application("shop", topology, bootstrap_servers="b:1")

def build():
    return topology

nothing = 1
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"program_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return name


@pytest.mark.parametrize("attribute", ["topology", "builder", "build", "app"])
def test_topologies_builders_functions_and_applications_can_be_described(
    program: str, attribute: str
) -> None:
    text = described(f"{program}:{attribute}", DescribeFormat.text)

    assert text.startswith(
        "Topologies:\n   Sub-topology: 0\n    Source: KSTREAM-SOURCE-0000000000 (topics: [in])"
    )


@pytest.mark.parametrize(
    ("form", "beginning"),
    [
        ("text", "Topologies:"),
        ("mermaid", "flowchart TB"),
        ("dot", "digraph topology {"),
        ("svg", "<svg "),
        ("plan", "Application shop\n"),
    ],
)
def test_a_topology_is_described_in_every_format(program: str, form: str, beginning: str) -> None:
    assert described(f"{program}:app", DescribeFormat(form)).startswith(beginning)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{}", "write MODULE:ATTRIBUTE"),
        ("{}.py:app", "write MODULE:ATTRIBUTE"),
        ("./{}:app", "write MODULE:ATTRIBUTE"),
        (".{}:app", "write MODULE:ATTRIBUTE"),
        ("{}:topolgy", "has no 'topolgy'; did you mean builder or topology or app?"),
        ("{}:nothing", "is of type int; it should be a Topology"),
        ("no_such_module:app", "there is no module 'no_such_module'"),
    ],
)
def test_an_invalid_target_is_refused_with_a_hint(program: str, target: str, message: str) -> None:
    with pytest.raises(TargetError) as caught:
        described(target.format(program), DescribeFormat.text)
    assert message in str(caught.value)


def test_a_function_with_parameters_is_refused(program: str) -> None:
    Path(f"{program}_made.py").write_text("def topology(topic, *, key=None): ...")
    for load in (
        lambda: described(f"{program}_made:topology", DescribeFormat.text),
        lambda: topology_of(f"{program}_made:topology"),
    ):
        with pytest.raises(
            TargetError, match=r"'\w+:topology' needs the argument 'topic'; it should be .*without parameters"
        ):
            load()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("async def topology(): ...", r"is an async function, which nothing awaits here; it should be a"),
        ("from builtins import max as topology", r"is of type builtin_function_or_method; it should be a"),
    ],
)
def test_an_async_or_builtin_function_is_refused(program: str, text: str, why: str) -> None:
    Path(f"{program}_odd.py").write_text(text)
    with pytest.raises(TargetError, match=why):
        topology_of(f"{program}_odd:topology")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("from os import no_such_name", "ImportError: cannot import name 'no_such_name'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def app(:", "SyntaxError: invalid syntax"),
    ],
)
def test_the_traceback_of_a_failing_import_has_only_lines_of_the_program(
    program: str, text: str, why: str
) -> None:
    Path(f"{program}_broken.py").write_text(text)
    with pytest.raises(TargetError) as caught:
        described(f"{program}_broken:app", DescribeFormat.text)
    message = str(caught.value)
    assert message.startswith(f"the module '{program}_broken' cannot be imported:\n")
    assert why in message.splitlines()[-1]
    assert f'{program}_broken.py", line 1' in message
    assert "importlib" not in message
    assert "program_targets" not in message


def test_a_missing_package_of_an_extra_is_not_an_error_of_the_program(program: str) -> None:
    Path(f"{program}_spark.py").write_text("import pyspark.no_such_module")
    with pytest.raises(ModuleNotFoundError, match=r"pyspark\.no_such_module"):
        described(f"{program}_spark:app", DescribeFormat.text)


def test_the_traceback_of_a_failing_function_has_only_lines_of_the_program(program: str) -> None:
    Path(f"{program}_fails.py").write_text("def topology():\n    return {}['shop']\n")
    with pytest.raises(TargetError, match=rf"'{program}_fails:topology' failed:\n") as caught:
        topology_of(f"{program}_fails:topology")
    assert str(caught.value).endswith("KeyError: 'shop'")
    assert "program_targets" not in str(caught.value)


def test_a_missing_module_that_a_function_imports_is_an_error_of_the_program(program: str) -> None:
    Path(f"{program}_imports.py").write_text("def topology():\n    import no_such_module\n")
    with pytest.raises(TargetError, match=rf"'{program}_imports:topology' failed:\n") as caught:
        topology_of(f"{program}_imports:topology")
    assert str(caught.value).endswith("ModuleNotFoundError: No module named 'no_such_module'")


def test_a_topology_function_is_called_only_once(program: str) -> None:
    Path(f"{program}_once.py").write_text(
        f"from {program} import topology as made\ncalls = []\ndef topology():\n    calls.append(1)\n    return made\n"
        "def again():\n    return again\n"
    )
    application_of(f"{program}_once:topology", "shop", {"bootstrap_servers": "b:1"})
    assert sys.modules[f"{program}_once"].calls == [1]
    for load in (
        lambda: described(f"{program}_once:again", DescribeFormat.text),
        lambda: topology_of(f"{program}_once:again"),
    ):
        with pytest.raises(TargetError, match="is of type function; it should be a Topology"):
            load()


def test_an_empty_application_id_is_refused(program: str) -> None:
    with pytest.raises(ms.errors.TopologyError, match="'' cannot be the name of an application"):
        application_of(f"{program}:topology", "", {"bootstrap_servers": "b:1"})


def test_describe_prints_the_plan_or_an_error_and_sets_the_exit_code(program: str) -> None:
    runner = CliRunner()

    good = runner.invoke(app, ["describe", f"{program}:app", "--format", "plan"])
    assert (good.exit_code, good.stdout.splitlines()[0]) == (0, "Application shop")

    bad = runner.invoke(app, ["describe", f"{program}:nothing"])
    assert (bad.exit_code, bad.stdout) == (1, "")
    assert bad.stderr.startswith("millstream describe: ")

    assert runner.invoke(app, ["--version"]).stdout == f"millstream {version('millstream')}\n"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_the_command_prints_how_to_install_it(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("millstream.edge.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)  # type: ignore[arg-type]

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 1
    assert "pip install 'millstream[cli]'" in capsys.readouterr().err


_WITHOUT_SPARK = """
import sys
sys.modules.update(dict.fromkeys(["pyspark", "py4j", "pyarrow", "pandas", "numpy"]))
from millstream.edge.cli import main
main()
"""


@pytest.mark.parametrize(
    "command", [["reset", "x", "--yes"], ["rescale", "x", "--partitions", "2"], ["demo"]]
)
def test_a_command_that_needs_spark_prints_how_to_install_it(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_SPARK, *command], capture_output=True, text=True)
    (message,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert message.startswith("millstream: this command needs the package py")
    assert "pip install 'millstream[spark]'" in message


def test_the_status_command_works_without_spark(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WITHOUT_SPARK, "status", "x", "--state-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "millstream status: application 'x' is not running with this state directory"
    )


def test_a_topology_is_described_without_spark() -> None:
    command = [sys.executable, "-c", _WITHOUT_SPARK, "describe", "examples.wordcount:topology"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "Topologies:")
