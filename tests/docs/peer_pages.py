"""The pages for users of another library: both programs, and how to run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from docs.markdown import ROOT, blocks_of

PAGES: Final = sorted(ROOT.glob("docs/how-to/come-from-*.md"))


class PeerPage:
    """What a page has for the comparison.

    Attributes:
        peer: The program of the other library.
        file: The name of its file.
        commands: What runs it.
        program: Ours, with a test driver.
        application: The same as an application.
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
