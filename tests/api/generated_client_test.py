"""The OpenAPI document is enough for a client that somebody else generates: one is, and used for the whole path."""

import asyncio
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.api.subscribing import Subscribing

PACKAGE = "generated_flowcatalyst"
GENERATOR = Path(sys.executable).parent / "openapi-python-client"


class Generated:
    """The modules of a generated client."""

    def __init__(self, folder: Path, document: str) -> None:
        path = folder / "openapi.json"
        path.write_text(document)
        command = [str(GENERATOR), "generate", "--path", str(path), "--meta", "none", "--fail-on-warning"]
        config = folder / "config.yml"
        config.write_text("post_hooks: []\n")  # they would format what nobody reads
        command += ["--output-path", str(folder / PACKAGE), "--config", str(config)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
        for module in (folder / PACKAGE / "api").rglob("*.py"):  # the generator forgets it where a body has two forms
            module.write_text(module.read_text().replace("import Response, UNSET\n", "import Response, UNSET, Unset\n"))

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"{PACKAGE}.{name}")

    def model(self, name: str) -> Any:
        return getattr(self.module("models"), name)

    def call(self, operation: str, client: Any, *parts: Any, **more: Any) -> Any:
        """What an operation answers, as its model."""
        return self.module(f"api.{operation}").sync(*parts, client=client, **more)


@pytest.fixture
def importable(tmp_path: Path) -> Iterator[Path]:
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_a_generated_client_makes_a_subscription_and_sends_events(shop: Subscribing, importable: Path) -> None:
    document = (await shop.client.get("/schema/openapi.json")).text
    body = shop.body("orders", mode="BLOCK_ON_ERROR")
    await asyncio.to_thread(_use, importable, document, shop.running.listening.url, body, shop.subscriber.secrets)
    await shop.until_got("orders", "1", "2")


def _use(folder: Path, document: str, url: str, body: dict[str, Any], secrets: dict[str, list[str]]) -> None:
    generated = Generated(folder, document)
    with generated.module("client").Client(base_url=url) as client:
        _follow_the_path(generated, client, body, secrets)


def _follow_the_path(generated: Generated, client: Any, body: dict[str, Any], secrets: dict[str, list[str]]) -> None:
    new = generated.model("NewSubscription").from_dict(body)
    made = generated.call("subscriptions.api_subscriptions_create_subscription", client, body=new)
    secrets["orders"] = [made.secret]
    event = {"type": "order.created", "source": "shop", "messageGroup": "g", "deduplicationId": "d"}
    new_event = generated.model("NewEvent").from_dict({**event, "data": {"name": "1"}})
    send = "events.api_events_send_event"
    sent = generated.call(send, client, body=new_event)
    assert (sent.jobs, generated.call(send, client, body=new_event).id) == (1, sent.id)
    cloud = {"specversion": "1.0", "id": "2", "type": "order.paid", "source": "shop", "messagegroup": "g"}
    cloud_event = generated.model("CloudEvent").from_dict({**cloud, "data": {"name": "2"}})
    assert generated.call(send, client, body=cloud_event).sender_id == "2"
    whole = generated.call("events.api_events_id_get_event", client, sent.id)
    assert [job.subscription for job in whole.jobs] == ["orders"]
    page = generated.call("subscriptions.api_subscriptions_list_subscriptions", client, limit=5)
    assert [one.code for one in page.items] == ["orders"]
    change = generated.model("SubscriptionChange")(name="Orders")
    changed = generated.call("subscriptions.api_subscriptions_code_change_subscription", client, "orders", body=change)
    assert changed.name == "Orders"
    pool = generated.model("DispatchPool")(code="P", concurrency=3)
    assert generated.call("dispatch_pools.api_dispatch_pools_create_pool", client, body=pool).concurrency == 3
    problem = generated.call("events.api_events_id_get_event", client, "nobody")
    assert (problem.status, problem.detail) == (404, "there is no event nobody")
