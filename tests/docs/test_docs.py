"""The documentation is correct: its programs run and print the shown output, its links have targets, its tables match the code.

The Python blocks of a page run in order in one namespace, as a reader would type them. A block with a file name is a module of its
own. An ``output`` block shows the output of the block before it. ``py`` and ``java`` blocks are programs for other libraries, which only
``make peers`` runs. Blocks marked ``broker`` run only in the test with a broker and Spark, together with all others of their page.
"""

from __future__ import annotations

import collections.abc
import contextlib
import io
import re
import sys
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from typer.main import get_command

import millstream as ms
from millstream.core.engine.threaded_nodes import ThreadFigures
from millstream.core.metrics.metric import Number
from millstream.core.model import errors
from millstream.core.runtime.task_report import CallReport, HotKeySample, TaskReport
from millstream.drivers.kafka.fetch import _PRESET
from millstream.drivers.kafka.produce import DEFAULTS
from millstream.drivers.spark.driver.wanted import FILE_MANAGER, QUERY_CONF, WANTED
from millstream.edge.cli.commands import app as command_line
from millstream.edge.metrics.application_metrics import EXPORTED
from millstream.edge.settings.client_settings import RULES
from millstream.edge.settings.settings import Settings
from millstream.edge.status.application_status import Status
from millstream.edge.status.task_reports import TaskReports
from millstream.testing.crash import TARGETS
from millstream.testing.crash.crash_command import options as crash_options

from .markdown import PAGES, ROOT, Block, anchors_of, blocks_of, links_of, name_of, table_rows

BLOCKS = {page: blocks_of(page) for page in PAGES}
LINES = ["to be or not to be", "that is the question"]


def pages_with(*, broker: bool) -> list[Path]:
    return [
        p for p, blocks in BLOCKS.items() if any(b.is_python and b.needs_broker == broker for b in blocks)
    ]


def run(blocks: list[Block], *, servers: str | None = None) -> None:
    """Run the Python blocks of a page in order, and compare their output with the blocks after them.

    Args:
        blocks: All blocks of the page.
        servers: The broker for the blocks that need one; None leaves them out.
    """
    name = name_of(blocks[0].page)
    page = types.ModuleType(re.sub(r"\W", "_", name) if servers is None else "__main__")
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # restores only these names: modules that a page imports stay imported
        patch.setitem(sys.modules, page.__name__, page)  # so that its definitions can be pickled
        for block in blocks:
            if block.file is not None:
                patch.setitem(sys.modules, Path(block.file).stem, types.ModuleType(Path(block.file).stem))
        _run(blocks, name, page.__dict__, servers)


def _run(blocks: list[Block], name: str, namespace: dict[str, Any], servers: str | None) -> None:
    for number, block in enumerate(blocks):
        if not block.is_python or (block.needs_broker and servers is None):
            continue
        text = block.text.replace("localhost:9092", servers or "localhost:9092")
        scope = namespace if block.file is None else vars(sys.modules[Path(block.file).stem])
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * (block.line - 1) + text, name, "exec"), scope)
        for after in blocks[number + 1 : number + 2]:
            if after.is_output:
                assert printed.getvalue().strip() == after.text.strip(), f"{name}:{block.line}"


@pytest.mark.parametrize("page", pages_with(broker=False), ids=name_of)
def test_blocks_run_and_print_the_shown_output(page: Path) -> None:
    run(BLOCKS[page])


@pytest.fixture
def topics(kafka: ms.testing.EmbeddedKafka) -> Iterator[ms.testing.EmbeddedKafka]:
    """The topics of the pages, with a few lines of text."""
    for topic in ("lines", "counts"):
        kafka.create_topic(topic, 2)
    kafka.produce("lines", [(None, line) for line in LINES])
    yield kafka
    for topic in ("lines", "counts"):
        kafka.delete_topic(topic)


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize("page", pages_with(broker=True), ids=name_of)
def test_blocks_run_on_a_broker(
    page: Path,
    topics: ms.testing.EmbeddedKafka,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MILLSTREAM_STATE_DIR", str(tmp_path))
    run_application = ms.Application.run
    monkeypatch.setattr(ms.Application, "run", lambda app, until="end": run_application(app, until))
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        run(BLOCKS[page], servers=topics.bootstrap_servers)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    counts = {r.key.decode(): int.from_bytes(r.value, "big") for r in topics.consume("counts")}
    assert counts == Counter(word for line in LINES for word in line.split())


def test_few_pages_need_a_broker() -> None:
    assert len(pages_with(broker=True)) <= 2


def test_fence_languages_are_known() -> None:
    known = {"python", "py", "output", "bash", "toml", "json", "mermaid", "text", "java"}
    assert {block.info[0] for blocks in BLOCKS.values() for block in blocks if block.info} <= known


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_link_targets_exist(page: Path) -> None:
    for line, target in links_of(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{name_of(page)}:{line} links to {target}"
        if anchor:
            assert anchor in anchors_of(linked), f"{name_of(page)}:{line} links to {target}"


def test_every_page_is_linked_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target).resolve() for _, target in links_of(index)}
    assert {page for page in PAGES if page.parent.parent == ROOT / "docs"} <= linked


def test_tests_named_by_rules_exist() -> None:
    named = [
        found
        for row in table_rows(ROOT / "docs/concepts/semantics.md", "rule")
        for found in re.findall(r"`(tests/[^`]+)::(\w+)`", row[2])
    ]
    assert len(named) > 30
    for path, name in named:
        assert re.search(rf"(def|class) {name}\b", (ROOT / path).read_text()), f"{path} has no {name}"


def test_rules_of_millstream_only_are_in_the_comparison_with_kafka_streams() -> None:
    compared = {
        row[0] for row in table_rows(ROOT / "docs/reference/compared-with-kafka-streams.md", "subject")
    }
    rules = table_rows(ROOT / "docs/concepts/semantics.md", "rule")
    different = {row[0]: row[1] for row in rules if "Millstream only" in row[1]}
    assert len(different) > 10
    for rule, source in different.items():
        subject = re.match(r"Millstream only: \[(.+?)\]\(", source)
        assert subject is not None, f"no subject of the comparison is named for: {rule}"
        assert subject[1] in compared, f"the comparison has no row {subject[1]!r}"


def test_the_readme_program_is_the_word_count_example() -> None:
    program = next(block.text for block in BLOCKS[ROOT / "README.md"] if block.is_python)
    example = (ROOT / "examples" / "wordcount.py").read_text().replace("# fmt: skip", "")
    building = program[program.index("builder =") :]
    assert " ".join(building.split()) in " ".join(example.split())


# Tables that list what the code has.


def test_documented_settings_match_the_code() -> None:
    rows = table_rows(ROOT / "docs/reference/settings.md", "setting")
    documented = {row[0].strip("`"): row for row in rows if row[0].strip("`") in Settings.model_fields}
    assert list(documented) == list(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        _, kind, default, meaning = documented[name]
        assert kind == f"`{type_text(field.annotation)}`", name
        assert meaning.startswith(field.description or "?"), name
        if field.is_required():
            assert default == "required", name
        elif name != "state_dir":  # its default depends on the user
            assert default == f"`{field.get_default(call_default_factory=True)!r}`", name


def test_documented_session_settings_match_the_code() -> None:
    page = ROOT / "docs/how-to/run-on-your-own-spark-session.md"
    per_query = [row[0].split("`")[1] for row in table_rows(page, "set for the query")]
    assert per_query == [*QUERY_CONF, FILE_MANAGER, "spark.sql.shuffle.partitions"]
    rows = [(row[0].split("`")[1], row[1].split("`")[1]) for row in table_rows(page, "set for the session")]
    assert rows == [(setting.name, setting.value) for setting in WANTED if setting.default is not None]


def test_documented_rules_of_client_settings_match_the_code() -> None:
    rows = table_rows(ROOT / "docs/reference/settings.md", "client setting")
    assert [re.findall("`([^`]+)`", names) for names, *_ in rows] == [list(rule.names) for rule in RULES]
    for rule, (_, allowed_text, meaning) in zip(RULES, rows):
        assert meaning == rule.meaning
        if rule.allowed is None:
            assert allowed_text == "any value", rule
        elif rule.allowed:
            assert re.findall("`([^`]+)`", allowed_text) == list(rule.allowed)
        else:
            assert allowed_text == f"refused: {rule.advice}"


def test_documented_preset_client_settings_match_the_code() -> None:
    rows = table_rows(ROOT / "docs/reference/settings.md", "client")
    documented = {name.strip("`"): value for _, name, value, _ in rows}
    refused = {
        name for rule in RULES if rule.allowed is not None and len(rule.allowed) < 2 for name in rule.names
    }
    preset = {name: str(value) for name, value in {**_PRESET, **DEFAULTS}.items() if name not in refused}
    assert documented == preset


def type_text(annotation: Any) -> str:
    """Write a type as the page does."""
    if get_origin(annotation) is Literal:
        return " | ".join(map(repr, get_args(annotation)))
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(map(type_text, get_args(annotation)))
    if annotation is type(None):
        return "None"
    if get_origin(annotation) is Annotated:
        return type_text(get_args(annotation)[0])
    if get_origin(annotation) is collections.abc.Callable:
        return "function"
    if get_origin(annotation) is not None:
        return f"{get_origin(annotation).__name__}[{', '.join(map(type_text, get_args(annotation)))}]"
    return str(annotation.__name__ if isinstance(annotation, type) else annotation).removeprefix("typing.")


def test_documented_errors_match_the_code() -> None:
    documented = [row[0].split("`")[1] for row in table_rows(ROOT / "docs/reference/errors.md", "class")]
    classes = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert documented == [*classes, "EmbeddedKafkaError", "CrashTestError"]


def test_documented_metrics_match_the_code() -> None:
    page = ROOT / "docs/reference/metrics.md"
    task_reports = TaskReports()
    calls = CallReport(hottest=[HotKeySample("call", "key", 1, 1, 10.0, 1)])
    figures = {"calls": calls, "threads": ThreadFigures((1, 1))}
    drops, counts = ("task_dropped_records_total", "<reason>"), ("processor_count_total", "<name>")
    numbers: list[Number] = [(name, ("0_0", label), 1) for name, label in (drops, counts)]
    report = TaskReport("0_0", measured=numbers, first_record_ms=1, **figures)
    task_reports.record_batch(0, [report])
    assert {row[0].strip("`") for row in table_rows(page, "metric")} == set(task_reports.metrics())
    assert [row[0].strip("`") for row in table_rows(page, "field")] == list(Status.__dataclass_fields__)


def test_documented_metrics_with_labels_match_the_code() -> None:
    rows = table_rows(ROOT / "docs/reference/metrics.md", "name")
    documented = [
        (name.strip("`"), tuple(re.findall("`([^`]+)`", labels)), meaning)
        for name, labels, meaning, _ in rows
    ]
    assert documented == [(metric.exported, metric.labels, metric.help) for metric in EXPORTED]


def test_documented_options_of_the_crash_harness_match_the_code() -> None:
    rows = table_rows(ROOT / "docs/reference/crash-harness.md", "argument")
    options = [action.option_strings[-1] for action in crash_options()._actions]
    assert {row[0].split("`")[1].split()[0] for row in rows} == set(options) - {"--help"}


def test_documented_targets_of_the_crash_harness_match_the_code() -> None:
    rows = table_rows(ROOT / "docs/reference/crash-harness.md", "target")
    assert [row[0].strip("`") for row in rows] == list(TARGETS)


def commands_of(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the commands by name; commands of a group have its name as a prefix."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{before}{name} ")
        else:
            yield before + name, command


def test_documented_commands_match_the_code() -> None:
    page = ROOT / "docs/reference/cli.md"
    commands = dict(commands_of(get_command(command_line)))
    headings = anchors_of(page) - {"command-line"}
    assert headings == {name.replace(" ", "-") for name in commands}
    options = {
        option
        for command in commands.values()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    }
    assert {row[0].strip("`") for row in table_rows(page, "option")} == options
