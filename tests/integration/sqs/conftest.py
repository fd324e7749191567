"""The servers that speak SQS, and clients that are closed in the end."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration.sqs.scene import Clients
from tests.servers.elasticmq import ElasticMqServer, elasticmq_server
from tests.servers.moto import MotoServer, moto_server


@pytest.fixture(scope="package")
def elasticmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ElasticMqServer]:
    with elasticmq_server(tmp_path_factory.mktemp("elasticmq")) as server:
        yield server


@pytest.fixture(scope="package")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(autouse=True)
def no_aws_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the machine knows of AWS is not known to the tests."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
async def client() -> AsyncIterator[Clients]:
    clients = Clients()
    yield clients
    await clients.close()
