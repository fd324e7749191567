"""Secrets of subscriptions: no log has them, whatever its level, and a key that is lost is a sentence and no outage."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from flowcatalyst.core.logs import close_logs, configure_logs
from flowcatalyst.dispatch.sealing import new_secret_key
from tests.api.running import until
from tests.api.subscribing import SUBSCRIPTIONS, subscribing
from tests.support.http_servers import always, raw_server, reply

PASSWORD, TOKEN = "hunter2-of-a-target", "hunter3-of-a-header"


@pytest.fixture
def all_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """All there was to say, by libraries too."""

    def read() -> str:
        close_logs()
        return (tmp_path / "log").read_text() + caplog.text

    caplog.set_level(logging.DEBUG)
    configure_logs("debug", "json", tmp_path / "log")
    yield read
    close_logs()
    structlog.reset_defaults()


async def test_no_log_has_a_secret_whatever_its_level(
    tmp_path: Path, store: dict[str, str], all_logged: Callable[[], str]
) -> None:
    folder = tmp_path / "data"
    async with subscribing(folder, platform=store) as shop:
        target = shop.server.url(f"/hooks/orders?password={PASSWORD}")
        more = {"targetUrl": target, "headers": {"Authorization": f"Bearer {TOKEN}"}, "mode": "BLOCK_ON_ERROR"}
        secrets = [(await shop.subscribe("orders", **more))["secret"]]
        shop.subscriber.fails("1", 500, 503)
        await shop.send("1", messageGroup="g")
        await shop.until_done("orders")
        secrets.append((await shop.act("orders", "rotate-secret")).json["secret"])
        await shop.send("2", messageGroup="g")
        await shop.act("orders", "test")
        refused = await shop.client.post(SUBSCRIPTIONS, shop.body("others") | {"secret": f"{secrets[0]}%"})
        assert refused.status == 400
        await shop.until_done("orders")
        await shop.client.delete(f"{SUBSCRIPTIONS}/orders")
    keys = [store["secret_key"]] if store else (folder / "secret.key").read_text().split()
    text = all_logged()
    assert '"what":"subscription_create"' in text
    assert '"group":"orders:g"' in text  # attempts are told of
    for secret in (*secrets, *keys, PASSWORD, TOKEN):
        assert secret.removeprefix("whsec_") not in text


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize("key", [None, "another"], ids=["lost", "wrong"])
async def test_without_the_right_key_of_a_database_that_is_a_sentence_and_all_else_is_delivered(
    tmp_path: Path, store: dict[str, str], key: str | None
) -> None:
    async with subscribing(tmp_path, platform=store) as shop:
        made = await shop.subscribe("orders", mode="BLOCK_ON_ERROR", status="PAUSED")
    lacking = {name: value for name, value in store.items() if name != "secret_key"}
    lacking |= {} if key is None else {"secret_key": new_secret_key()}
    sentence = "platform.secret_key"
    async with subscribing(tmp_path, platform=lacking) as shop, raw_server(always(reply(200))) as unsigned:
        shown = (await shop.shown("orders"))["problem"]
        assert sentence in shown
        assert "\n" not in shown
        await shop.change("orders", targetUrl=shop.server.url("/hooks/orders"), status="ACTIVE")
        assert (await shop.send("1", messageGroup="g"))["jobs"] == 1
        job = {"code": "test", "targetUrl": unsigned.url("/job"), "payload": {"name": "x"}}
        assert (await shop.client.post("/api/dispatch-jobs", job)).status == 201
        await unsigned.until(lambda server: len(server.requests) == 1)
        others = await shop.client.post(SUBSCRIPTIONS, shop.body("others", "invoice.*"))
        if key is None:
            assert (others.status, sentence in others.json["detail"]) == (503, True)
        else:  # what is sealed from now on can be opened
            shop.subscriber.secrets["others"] = [others.json["secret"]]
            await shop.send("2", type="invoice.sent")
            await shop.until_got("others", "2")

        async def is_told() -> bool:
            return any(sentence in one.message for one in shop.running.app.warnings.recent())

        await until(is_told)
        assert len(await shop.unfinished("orders")) == 1
        assert shop.subscriber.refused == []  # nothing was sent without a signature
    async with subscribing(tmp_path, platform=store) as shop:
        assert (await shop.shown("orders"))["problem"] is None
        shop.subscriber.secrets["orders"] = [made["secret"]]
        await shop.change("orders", targetUrl=shop.server.url("/hooks/orders"))
        await shop.send("3")
        await shop.until_got("orders", "3")
