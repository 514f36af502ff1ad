"""The pages for users of another library: both programs, and how to run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from docs.markdown import ROOT, blocks_of

PAGES: Final = sorted(ROOT.glob("docs/how-to/come-from-*.md"))


class PeerPage:
    """The programs and commands of a page.

    Attributes:
        peer: The program of the other library.
        file: The name of its file.
        commands: The commands that run it.
        program: The Millstream program, with a test driver.
        application: The same program as an application.
    """

    def __init__(self, path: Path) -> None:
        """Read a page."""
        blocks = blocks_of(path)
        peer = next(block for block in blocks if block.info[0] in ("py", "java"))
        self.name, self.peer, self.file = path.stem, peer.text, peer.info[1]
        self.commands = next(block.text for block in blocks if block.info == ("bash", "peer"))
        self.program = next(block.text for block in blocks if block.is_python)
        (started,) = re.findall(
            r"replace the test driver with\s+`(ms\.Application\([^`]*)`", path.read_text()
        )
        self.application = f"{self.program[: self.program.index('with ms.testing')]}{started}\n"
