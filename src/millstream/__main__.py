"""``python -m millstream``: the command ``millstream`` where its script is not on the path."""

from millstream.edge.cli import main

main()
