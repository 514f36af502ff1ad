"""``python -m penstock.edge.cli``: the command where no script was installed."""

from penstock.edge.cli import main

main()
