"""`python -m flowcatalyst` is the command `flowcatalyst`."""

from flowcatalyst.cli.main import main

main()
