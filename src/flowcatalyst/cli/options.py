"""Options of more than one command."""

from pathlib import Path
from typing import Annotated

import typer

Host = Annotated[str | None, typer.Option(help="Address of the API  [default: 127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="Port of the API, 0 for a free one  [default: 8080]")]
DataDir = Annotated[Path | None, typer.Option(help="Folder for queue and dead letters  [default: data]")]
SettingsFile = Annotated[Path | None, typer.Option(help="Settings file  [default: flowcatalyst.toml, if there]")]
