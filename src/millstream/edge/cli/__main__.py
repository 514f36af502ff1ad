"""``python -m millstream.edge.cli``: the command where no script was installed."""

from millstream.edge.cli import main

main()
