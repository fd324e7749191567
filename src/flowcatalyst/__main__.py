"""`python -m flowcatalyst` is the command `flowcatalyst`."""

from flowcatalyst.cli.entry import main

main()
