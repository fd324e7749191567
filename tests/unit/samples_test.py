"""The samples that are shipped are what the program reads: settings, containers, alerts and the dashboard."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from flowcatalyst.api.access import PROBES
from flowcatalyst.app.router import App, config_of
from flowcatalyst.control import environment
from flowcatalyst.control.metrics import StoredFigures, lines
from flowcatalyst.control.platform_settings import PlatformSettings
from flowcatalyst.control.router_config import parse
from flowcatalyst.control.settings import Settings, describe_settings, load_settings
from flowcatalyst.core.credentials import read_accounts
from flowcatalyst.dispatch.store.contract import Figures
from tests.servers import ServerMissingError, program, skip_or_fail
from tests.unit.packaging_test import STOP_LIMIT_S, options_of

ROOT = Path(__file__).parent.parent.parent
PACKAGING = ROOT / "packaging"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.upper().startswith(("FLOWCATALYST_", "MESSAGE_ROUTER_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def loaded(variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, file: Path | None = None) -> Settings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return load_settings(file)


def test_the_sample_settings_are_those_of_a_router() -> None:
    settings = load_settings(PACKAGING / "flowcatalyst.toml")
    config = config_of(settings)
    assert list(config.pools) == ["DEFAULT-POOL", "PAYMENTS"]
    assert "orders" in config.queues
    assert settings.egress.allow_private


@pytest.mark.parametrize("number", range(3))
def test_every_queue_that_the_sample_settings_propose_can_be_used(tmp_path: Path, number: int) -> None:
    text = (PACKAGING / "flowcatalyst.toml").read_text()
    proposed = re.findall(r"^# (uri = .*?) +# in the checkout: pip install '\.\[(\w+)\]'$", text, re.MULTILINE)
    assert [extra for _, extra in proposed] == ["sqs", "nats", "activemq"]
    (tmp_path / "changed.toml").write_text(text.replace('uri = "embedded:orders"', proposed[number][0]))
    assert load_settings(tmp_path / "changed.toml").queues[0].uri in proposed[number][0]


def variables_of_sample() -> tuple[dict[str, str], dict[str, str]]:
    """Those in force and those that are proposed."""
    text = (PACKAGING / "router.env").read_text()
    found = {mark: re.findall(rf"^{mark}([A-Z_]+)=(\S+)$", text, re.MULTILINE) for mark in ("", "#")}
    meant = [line for line in text.splitlines() if line and not line.startswith("# ")]
    assert len(meant) == len(found[""]) + len(found["#"])
    return dict(found[""]), dict(found["#"])


def test_the_sample_variables_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    set_, proposed = variables_of_sample()
    assert loaded(set_, monkeypatch, PACKAGING / "flowcatalyst.toml").log.format == "json"
    settings = loaded(proposed, monkeypatch, PACKAGING / "flowcatalyst.toml")
    assert settings.sync.config_url == proposed[environment.CONFIG_URL]
    assert settings.standby.redis_url is not None
    assert settings.auth.mode == "api_key"
    assert settings.host == "0.0.0.0"


def test_the_composed_router_can_be_reached_with_the_password_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    composed = yaml.safe_load(text)
    router = composed["services"]["router"]
    options_of(router["command"][0])
    settings = loaded(router["environment"], monkeypatch)
    password = re.search(r"password: (\S+)", text)
    assert password
    assert settings.auth.mode == "basic"
    [account] = read_accounts(settings.auth.admin, [])
    assert account.name == b"admin"
    assert account.password.matches(password[1].encode())
    [port] = router["ports"]
    assert port == f"127.0.0.1:{settings.port}:{settings.port}", "its password is known to everybody"
    assert int(router["stop_grace_period"].removesuffix("s")) > STOP_LIMIT_S
    [volume] = router["volumes"]
    assert volume.partition(":")[0] in composed["volumes"]
    assert f"VOLUME {volume.partition(':')[2]}\n" in (ROOT / "Dockerfile").read_text()


@pytest.fixture
def kubernetes() -> dict[str, dict[str, Any]]:
    documents = list(yaml.safe_load_all((PACKAGING / "kubernetes.yaml").read_text()))
    return {document["kind"]: document for document in documents}


def test_the_router_on_kubernetes_gets_settings_that_it_can_use(
    kubernetes: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = kubernetes["StatefulSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["enableServiceLinks"] is False
    options_of(container["args"][0])
    variables = {one["name"]: one["value"] for one in container["env"]} | kubernetes["Secret"]["stringData"]
    settings = loaded(variables, monkeypatch)
    assert (settings.auth.mode, settings.port) == ("api_key", container["ports"][0]["containerPort"])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert settings.sync.config_url is not None
    folder, _, file = settings.sync.config_url.rpartition("/")
    assert mounts["config"] == folder
    config, problems = parse(kubernetes["ConfigMap"]["data"][file].encode(), file)
    assert (problems, list(config.queues)) == ([], ["default"])
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"FLOWCATALYST_DATA_DIR={mounts['data']}" in dockerfile
    assert f"--uid {pod['securityContext']['runAsUser']} " in dockerfile


def test_what_kubernetes_runs_is_probed_selected_and_given_the_time_to_drain(
    kubernetes: dict[str, dict[str, Any]],
) -> None:
    template = kubernetes["StatefulSet"]["spec"]["template"]
    assert template["spec"]["terminationGracePeriodSeconds"] > STOP_LIMIT_S
    [container] = template["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in PROBES
        assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]
    assert kubernetes["Service"]["spec"]["selector"] == template["metadata"]["labels"]
    assert kubernetes["Service"]["metadata"]["name"] == kubernetes["StatefulSet"]["spec"]["serviceName"]
    [secret] = container["envFrom"]
    assert secret["secretRef"]["name"] == kubernetes["Secret"]["metadata"]["name"]
    volumes = {one["name"] for one in template["spec"]["volumes"]}
    claims = {one["metadata"]["name"] for one in kubernetes["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes | claims


def test_the_samples_name_variables_of_settings_that_exist() -> None:
    known = {f"FLOWCATALYST_{setting.name.upper().replace('.', '__')}" for setting in describe_settings()}
    for path in (ROOT / "docker-compose.yml", PACKAGING / "kubernetes.yaml", PACKAGING / "router.env"):
        used = set(re.findall(r"FLOWCATALYST_[A-Z_]*[A-Z]", path.read_text()))
        assert used, path.name
        assert used <= known, f"{path.name} names {used - known}"


def queries() -> dict[str, str]:
    """The queries of the dashboard by panel, with what Grafana fills in."""
    dashboard = json.loads((PACKAGING / "grafana-dashboard.json").read_text())
    return {
        f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "1m").replace("$job", ".*")
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }


@pytest.mark.parametrize("file", ["prometheus-rules.yml", "grafana-dashboard.json"])
def test_alerts_and_dashboard_use_metrics_that_exist(tmp_path: Path, file: str) -> None:
    names: set[str] = set()
    app = App(Settings(data_dir=tmp_path, platform=PlatformSettings(enabled=True)))
    text = "".join(lines(app, StoredFigures(jobs=Figures(0, 0, 0, 0, 0, {}, None))))
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        names |= {name + suffix for suffix in (("_bucket", "_count", "_sum") if kind == "histogram" else ("",))}
    used = set(re.findall(r"flowcatalyst_[a-z_0-9]+", (PACKAGING / file).read_text()))
    assert used
    assert used <= names


@pytest.fixture(scope="module")
def promtool() -> str:
    try:
        return program("promtool")
    except ServerMissingError as error:
        skip_or_fail(error)


def test_prometheus_accepts_the_alerts(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", PACKAGING / "prometheus-rules.yml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rules found" in done.stdout


def test_prometheus_accepts_the_queries_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    rules = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(queries().values())]
    assert len(rules) > 10
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should(promtool: str, tmp_path: Path) -> None:
    def alert(name: str, at: str, labels: Mapping[str, str] | None, summary: str = "") -> dict[str, Any]:
        fires = {"exp_labels": labels, "exp_annotations": {"summary": summary} if summary else {}}
        return {"eval_time": at, "alertname": name, "exp_alerts": [] if labels is None else [fires]}

    series = {
        'up{job="flowcatalyst"}': "1x4 0x10",
        "flowcatalyst_primary": "1x4 0x10",
        "flowcatalyst_health": "0x4 2x10",
        'flowcatalyst_pool_longest_blocked_seconds{pool="A"}': "880+10x14",
        'flowcatalyst_queue_oldest_message_seconds{queue="q"}': "3590x2 3700x12",
    }
    test = {
        "rule_files": [str(PACKAGING / "prometheus-rules.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [
                    alert("RouterDown", "4m", None),
                    alert("RouterDown", "8m", {"job": "flowcatalyst"}),
                    alert("NobodyIsPrimary", "4m", None),
                    alert("NobodyIsPrimary", "8m", {}),
                    alert("RouterDegraded", "4m", None),
                    alert("RouterDegraded", "8m", {}),
                    alert("GroupBlocked", "2m", None),
                    alert(
                        "GroupBlocked",
                        "4m",
                        {"pool": "A"},
                        "a group of pool A waits for a message that fails: see /monitoring/health",
                    ),
                    alert("MessagesOld", "6m", None),
                    alert(
                        "MessagesOld",
                        "10m",
                        {"queue": "q"},
                        "the oldest message of queue q is older than an hour: see /monitoring/top-groups",
                    ),
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run([promtool, "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
