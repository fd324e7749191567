"""The OpenAPI document and a page that shows it without any file from the Internet."""

import html
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request, Response, Router
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, RequestBody, Schema, SecurityScheme
from litestar.openapi.spec.enums import OpenAPIType

from flowcatalyst import __version__
from flowcatalyst.api.access import OWN_TOKENS, PROBES, is_receiver
from flowcatalyst.api.browser_headers import POLICY, page_policy
from flowcatalyst.api.problems import PROBLEM_MEDIA_TYPE, Problem, ProblemError, problem_response
from flowcatalyst.api.scopes import scope_of
from flowcatalyst.control.settings import AuthSettings

DESCRIPTION: Final = """\
FlowCatalyst takes messages from queues and delivers each one by HTTP POST: strictly in order within a message group,
in parallel across groups.

Send events with `POST /api/events`: `/api/subscriptions` say who gets a signed webhook of each. Send messages with
`POST /api/messages`. See what the router does under `/monitoring`, `/health` and `/metrics`.
`/api/seed` and `/api/test` are a built-in sender and receiver to try it out with: the receiver judges the order.

Every error is `application/problem+json` (RFC 9457) with a sentence in `detail`.
"""


def openapi_config() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="FlowCatalyst",
        version=__version__,
        summary="An ordered message router: queue in, HTTP out, strict order per message group",
        description=DESCRIPTION,
        use_handler_docstrings=True,
        openapi_router=Router("/schema", route_handlers=[], include_in_schema=False, after_request=_as_problem),
        render_plugins=[OfflinePage(), JsonRenderPlugin()],
    )


def _as_problem(response: Response[Any]) -> Response[Any]:
    """Litestar answers an unknown path below /schema with a page of its own."""
    if response.status_code == HTTPStatus.NOT_FOUND:
        error = ProblemError(HTTPStatus.NOT_FOUND, "there is only /schema and /schema/openapi.json")
        return problem_response(error)
    response.headers[POLICY] = _POLICY
    return response


def with_json_body(body_type: Any, description: str, *, required: bool = True) -> type[Operation]:
    """An operation whose handler decodes the body itself; the document still shows its schema."""
    return with_bodies({"application/json": schema_of(body_type)}, description, required=required)


def with_bodies(schemas: dict[str, Any], description: str, *, required: bool = True) -> type[Operation]:
    """The same for a body in one of several forms, by its Content-Type."""
    content = {media_type: OpenAPIMediaType(schema=schema) for media_type, schema in schemas.items()}
    body = RequestBody(content=content, description=description, required=required)

    @dataclass
    class OperationWithBody(Operation):
        request_body: Any = field(default_factory=lambda: body)

        def __post_init__(self) -> None:
            self.request_body = body

    return OperationWithBody


_PARTS: Final[dict[str, Any]] = {}  # schemas that bodies and problems refer to, by name


def schema_of(body_type: Any) -> Any:
    """JSON Schema of a type. It refers to its parts by name: clients that are generated have these names."""
    (schema,), parts = msgspec.json.schema_components([body_type], ref_template="#/components/schemas/{name}")
    for name, part in parts.items():
        named_schema(name, part)
    return schema


def named_schema(name: str, schema: dict[str, Any]) -> Any:
    """A reference to a schema that no type of ours has."""
    assert _PARTS.setdefault(name, schema) == schema, f"two schemas are called {name}"
    return {"$ref": f"#/components/schemas/{name}"}


def document_parts(document: Any) -> None:
    """Add what bodies and problems refer to."""
    document.components.schemas = {**_PARTS, **document.components.schemas}


def document_problems(document: Any) -> None:
    """Say for every operation that its errors are problem details."""
    for _, _, operation in operations(document):
        bad_request = operation.responses.get("400")
        if bad_request is not None and bad_request.description == HTTPStatus.BAD_REQUEST.description:
            del operation.responses["400"]  # Litestar's own, of another shape
        elif bad_request is not None:
            bad_request.content.setdefault(PROBLEM_MEDIA_TYPE, _PROBLEM_CONTENT[PROBLEM_MEDIA_TYPE])
        what = _problem("What went wrong, in a sentence")
        if own_failure := operation.responses.get("500"):  # of a receiver that fails on purpose, in more ways than 500
            what.content = {**own_failure.content, **_PROBLEM_CONTENT}
        operation.responses["default"] = what


def document_parameters(document: Any) -> None:
    """Say of a parameter that may be left out just what it is if it is there: it cannot be null."""
    null = Schema(type=OpenAPIType.NULL)
    for _, _, operation in operations(document):
        for parameter in operation.parameters or []:
            schema = parameter.schema
            if schema.one_of and null in schema.one_of:
                (only,), schema.one_of = [one for one in schema.one_of if one != null], None
                if isinstance(only, Schema):
                    schema.type, schema.format = only.type, schema.format or only.format
                    schema.items = only.items
                else:
                    schema.all_of = [only]


def document_access(document: Any, auth: AuthSettings) -> None:
    """Say which credentials the auth mode in force asks for, and which scope each operation needs."""
    schemes = _SECURITY_SCHEMES[auth.mode]
    if not schemes:
        return
    document.components.security_schemes = schemes
    for path, method, operation in operations(document):
        if path in OWN_TOKENS or (auth.open_probes and path in PROBES):
            operation.security = []
            continue
        scope = scope_of(method, path)
        needed: list[dict[str, list[str]]] = [{name: [scope]} for name in schemes]
        operation.security = [{}, *needed] if is_receiver(path, method) else needed
        operation.description = f"{operation.description or ''}\n\nNeeds the scope `{scope}`.".strip()
        operation.responses["401"] = _problem("Credentials are missing or wrong")
        operation.responses["403"] = _problem("The credentials lack the scope, or a page of another origin asks")
        if auth.mode == "basic":
            operation.responses["429"] = _problem("Too many wrong passwords: try again in a second")


_SECURITY_SCHEMES: Final = {
    "none": {},
    "api_key": {
        "apiKey": SecurityScheme(type="apiKey", name="X-API-Key", security_scheme_in="header"),
        "bearer": SecurityScheme(type="http", scheme="bearer", description="The same keys"),
    },
    "basic": {"basic": SecurityScheme(type="http", scheme="basic")},
}


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    """Path, method and operation."""
    for path, path_item in document.paths.items():
        for method in ("GET", "PUT", "POST", "PATCH", "DELETE"):
            operation = getattr(path_item, method.lower())
            if operation is not None:
                yield path, method, operation


def _problem(description: str) -> OpenAPIResponse:
    return OpenAPIResponse(description=description, content=_PROBLEM_CONTENT)


_PROBLEM_CONTENT: Final = {PROBLEM_MEDIA_TYPE: OpenAPIMediaType(schema=schema_of(Problem))}


_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title} API {version}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733 }}
summary {{ cursor: pointer; padding: .25rem 0 }} details > div {{ margin: 0 0 1rem 5.5rem; color: #445 }}
b.method {{ display: inline-block; width: 5rem; color: #0a6 }} code {{ background: #eef2f5; padding: 0 .25rem }}
h2 {{ border-bottom: 1px solid #d5dde5; margin-top: 2rem }} pre {{ white-space: pre-wrap; font: inherit }}
</style></head><body>
<h1>{title} API <small>{version}</small></h1><pre>{description}</pre>
<p>The whole document for tools: <a href="/schema/openapi.json">/schema/openapi.json</a>. <a href="/">Home</a></p>
{sections}
</body></html>"""


_POLICY: Final = page_policy(_PAGE.format(title="", version="", description="", sections=""))


class OfflinePage(OpenAPIRenderPlugin):
    """Lists every operation, rendered here."""

    def __init__(self) -> None:
        super().__init__(path="/")

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        by_tag: dict[str, list[str]] = {}
        parts = openapi_schema["components"]["schemas"]
        for path, operations in openapi_schema["paths"].items():
            for method, operation in operations.items():
                tag = (operation.get("tags") or ["Other"])[0]
                by_tag.setdefault(tag, []).append(_operation_html(method, path, operation, parts))
        sections = "".join(f"<h2>{html.escape(tag)}</h2>{''.join(found)}" for tag, found in sorted(by_tag.items()))
        info = openapi_schema["info"]
        texts = {name: html.escape(info[name]) for name in ("title", "version", "description")}
        return _PAGE.format(**texts, sections=sections).encode()


def _operation_html(method: str, path: str, operation: dict[str, Any], parts: dict[str, Any]) -> str:
    head = f"<b class=method>{method.upper()}</b> <code>{html.escape(path)}</code>"
    texts = [f"<pre>{html.escape(operation.get('description', ''))}</pre>"]
    for parameter in operation.get("parameters", []):
        name, text = html.escape(parameter["name"]), html.escape(parameter.get("description", ""))
        texts.append(f"<div><code>{name}</code> {text}</div>")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        texts.append(f"<div>JSON body with {_fields_html(body, parts)}</div>")
    return (
        f"<details><summary>{head} {html.escape(operation['summary'])}</summary><div>{''.join(texts)}</div></details>"
    )


def _fields_html(schema: dict[str, Any], parts: dict[str, Any]) -> str:
    """The fields of an object, or of the object among the alternatives."""
    for choice in schema.get("anyOf", [schema]):
        whole = parts[choice["$ref"].rpartition("/")[2]] if "$ref" in choice else choice
        if "properties" in whole:
            return ", ".join(f"<code>{html.escape(name)}</code>" for name in whole["properties"])
    return "a list"
