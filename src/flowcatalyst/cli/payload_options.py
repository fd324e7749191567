"""The options that say what a message has sent: payload, content type and headers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.core.json_words import why_not_json
from flowcatalyst.core.payload import JSON_TYPE, NO_PAYLOAD, is_json

PayloadText = Annotated[
    str | None,
    typer.Option(
        "--payload", metavar="TEXT", help="What is sent instead of the id: JSON, or text with a --content-type"
    ),
]
PayloadFile = Annotated[Path | None, typer.Option("--payload-file", metavar="FILE", help="The same from a file")]
ContentType = Annotated[
    str | None,
    typer.Option("--content-type", metavar="TYPE", help=f"Media type of the payload  [default: {JSON_TYPE}]"),
]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME:VALUE", help="A header to send along; may be repeated"),
]


def not_for_raw(queue: str) -> str:
    said = f"queue {queue} is raw, and its settings say where its bodies go"
    return f"{said}: give it a --payload, and --group or --deduplication-id if you like"


def payload_text(text: str | None, file: Path | None) -> str | None:
    if text is not None and file is not None:
        raise typer.BadParameter("a payload has either --payload or --payload-file")
    if file is None:
        return text
    try:
        return file.read_bytes().decode()
    except OSError as error:
        raise ConfigurationError(f"file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"file {file} is not UTF-8 text, and a payload has to be") from None


def payload_of(text: str | None, file: Path | None, content_type: str | None) -> msgspec.Raw:
    text = payload_text(text, file)
    if text is None:
        return NO_PAYLOAD
    if content_type is not None and not is_json(content_type):
        return msgspec.Raw(msgspec.json.encode(text))
    try:
        return msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise typer.BadParameter(
            f"the payload is not JSON: {why_not_json(error)}; text needs a --content-type, such as text/plain"
        ) from None


def headers_of(given: Sequence[str] | None) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    for one in given or ():
        name, colon, value = one.partition(":")
        if not colon:
            raise typer.BadParameter("a --header is a name and a value with a colon between them")  # it may be a secret
        if name in headers:
            raise typer.BadParameter(f"the header {name} is there twice")
        headers[name] = value.strip(" ")
    return headers or None
