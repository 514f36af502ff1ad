"""Displays of a scene: a live picture for terminals, lines of text for other outputs.

The main thread drives both. The live picture is redrawn four times per second, which takes about one percent of a core; the text form
prints the progress every two seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from millstream.edge.cli.demo.board import BoardStep, Scene

TITLE = "Millstream demo: words of Shakespeare's sonnets, from Kafka through Spark to Kafka"
TOP = 10
_REDRAWS_PER_S = 4
_PLAIN_EVERY_S = 2.0
_BAR_WIDTH = 40


def display_for(console: Console, look: Callable[[], Scene]) -> LiveDisplay | PlainDisplay:
    return LiveDisplay(console, look) if console.is_terminal else PlainDisplay(console, look)


class LiveDisplay:
    """A picture that is redrawn in place. Used only by the main thread."""

    def __init__(self, console: Console, look: Callable[[], Scene]) -> None:
        self._look = look
        self._spinner = Spinner("dots")
        self._live = Live(
            console=console,
            get_renderable=lambda: picture(self._look(), monotonic(), self._spinner),
            refresh_per_second=_REDRAWS_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def refresh(self) -> None:
        """Do nothing: the picture redraws itself."""


class PlainDisplay:
    """Lines of text, printed as the demo proceeds. Used only by the main thread."""

    def __init__(self, console: Console, look: Callable[[], Scene]) -> None:
        self._console = console
        self._look = look
        self._said: set[str] = set()
        self._next = 0.0

    def __enter__(self) -> Self:
        self._say(TITLE)
        return self

    def __exit__(self, *exc: object) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Print steps that began or ended, and periodically the progress."""
        scene, now = self._look(), monotonic()
        news = [f"{step.name} ..." for step in scene.steps]
        news += [_step_line(step, now) for step in scene.steps if step.ended is not None]
        news = [line for line in news if line not in self._said]
        if scene.state and (now >= self._next or news):
            self._next = now + _PLAIN_EVERY_S
            self._say_once(progress_line(scene))
        for line in news:
            self._say_once(line)

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def progress_line(scene: Scene) -> str:
    top = ", ".join(f"{word} {count:,}" for word, count in scene.top(3))
    return (
        f"{scene.state}, batch {scene.batch}: {scene.written:,} of {scene.total:,} lines written, {scene.counted:,} counted, "
        f"lag {scene.lag:,}, {scene.records_per_s:,.0f} records/s{'; ' + top if top else ''}"
    )


def picture(scene: Scene, now: float, spinner: Spinner) -> RenderableType:
    """Draw a scene; ``now`` is in monotonic seconds."""
    steps = Table.grid(padding=(0, 1))
    for step in scene.steps:
        steps.add_row(
            _mark(step, spinner), step.name, f"{step.seconds(now):5.1f} s", Text(step.result, style="cyan")
        )
    parts: list[RenderableType] = [Text(TITLE, style="bold"), steps]
    if scene.state:
        parts += [Text(""), _progress(scene)]
    if scene.counts:
        parts += [Text(""), top_words(scene)]
    return Group(*parts)


def top_words(scene: Scene) -> Table:
    table = Table.grid(padding=(0, 1))
    top = scene.top(TOP)
    for word, count in top:
        bar = ProgressBar(
            total=top[0][1], completed=count, width=_BAR_WIDTH, finished_style="green", complete_style="green"
        )
        table.add_row(Text(word, justify="right"), bar, Text(f"{count:,}", justify="right"))
    return table


def _progress(scene: Scene) -> Table:
    table = Table.grid(padding=(0, 1))
    for name, lines in (("written", scene.written), ("counted", scene.counted)):
        bar = ProgressBar(total=scene.total, completed=lines, width=_BAR_WIDTH)
        table.add_row(Text(name, justify="right"), bar, f"{lines:,} of {scene.total:,} lines")
    speed = f"{scene.records_per_s:,.0f} records/s"
    table.add_row(
        Text("state", justify="right"), f"{scene.state}, batch {scene.batch}", f"lag {scene.lag:,}, {speed}"
    )
    return table


def _mark(step: BoardStep, spinner: Spinner) -> RenderableType:
    if step.ended is None:
        return spinner
    return Text("✗", style="red") if step.failed else Text("✓", style="green")


def _step_line(step: BoardStep, now: float) -> str:
    ending = "failed" if step.failed else "done"
    return f"{step.name}: {ending} after {step.seconds(now):.1f} s{'  ' + step.result if step.result else ''}"
