"""The chart: lints, renders, and configures the service that there really is."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings import load

helm = pytest.importorskip("helm_python", reason="helm's library has no wheel for this platform")

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "execution-plane"
VALUES: dict[str, Any] = {
    "secrets": {"existingSecret": "service-secrets"},
    "settings": {
        "IDENTITY__ISSUERS": {
            "corp": {"issuers": ["https://i.test"], "jwks_url": "https://i.test/k"}
        },
        "IDENTITY__GRANTS": [
            {"role": "runner", "issuer": "corp", "audiences": ["a"], "accounts": ["r@i.test"]}
        ],
        "SERVER__MAX_BODY_BYTES": 20_000_000,
        "LEASES__LEASE_SECONDS": 45.5,
        "TELEMETRY__ACCESS_LOG": False,
    },
}
EVERYTHING: dict[str, Any] = {
    **VALUES,
    "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": [{"name": "registry"}]},
    "scheduler": {"enabled": True},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "front"},
    "networkPolicy": {"enabled": True, "from": [{"podSelector": {}}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "tls": {"existingSecret": "service-tls"},
    "extraEnv": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}],
    "gracefulStopSeconds": 90,
}


def render(values: dict[str, Any]) -> list[dict[str, Any]]:
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name="prod", namespace="execution")
    manifests = [text for name, text in files.items() if not name.endswith("NOTES.txt")]
    return [one for text in manifests for one in yaml.safe_load_all(text) if one]


def of_kind(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in manifests if one["kind"] == kind]


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["spec"]["template"]["spec"]


def test_the_chart_lints():
    result = helm.lint(str(CHART))

    assert result["errors"] == []
    assert [
        m for m in result["messages"] if m["severity"] > 1 and "required" not in m["error"]
    ] == []


def test_its_version_is_the_program_s():
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()

    assert f'\nversion = "{described["appVersion"]}"\n' in project


def test_by_default_one_deployment_does_everything():
    manifests = render(VALUES)

    assert sorted(one["kind"] for one in manifests) == [
        "ConfigMap",
        "Deployment",
        "Job",
        "PodDisruptionBudget",
        "Service",
        "ServiceAccount",
    ]
    [deployment] = of_kind(manifests, "Deployment")
    assert environment_of(deployment, manifests)["EXECUTION_PLANE_ROLE"] == "all"


def test_the_scheduler_may_stand_apart_and_is_called_by_nobody():
    manifests = render(EVERYTHING)

    roles = {
        one["metadata"]["name"]: environment_of(one, manifests)["EXECUTION_PLANE_ROLE"]
        for one in of_kind(manifests, "Deployment")
    }
    assert roles == {
        "prod-execution-plane-api": "api",
        "prod-execution-plane-scheduler": "scheduler",
    }
    front = next(s for s in of_kind(manifests, "Service") if "clusterIP" not in s["spec"])
    assert front["spec"]["selector"]["app.kubernetes.io/component"] == "api"
    assert len(of_kind(manifests, "PodDisruptionBudget")) == 2


def test_selectors_meet_the_pods_that_they_mean():
    manifests = render(EVERYTHING)

    pods = [
        one["spec"]["template"]["metadata"]["labels"] for one in of_kind(manifests, "Deployment")
    ]
    for one in manifests:
        selector = one.get("spec", {}).get("selector") if one["kind"] != "ServiceMonitor" else None
        labels = (selector or {}).get("matchLabels", selector)
        if labels:
            assert any(labels.items() <= pod.items() for pod in pods), one["metadata"]["name"]


# --- the environment that it makes ---------------------------------------------------------------


def environment_of(workload: dict[str, Any], manifests: list[dict[str, Any]]) -> dict[str, str]:
    """What the container of this workload finds in its environment."""
    [container] = pod_of(workload)["containers"]
    values = {one["name"]: one["value"] for one in container["env"]}
    for source in container.get("envFrom", []):
        name = source["configMapRef"]["name"]
        [found] = [m for m in of_kind(manifests, "ConfigMap") if m["metadata"]["name"] == name]
        values |= found["data"]
    return values


SECRETS = {
    "database-url": "postgresql://service:hunter2@db/execution",
    "objects-access-key-id": "id",
    "objects-secret-access-key": "secret",
    "server-keys": json.dumps({"k1": "x" * 40}),
}


@pytest.mark.parametrize("values", [VALUES, EVERYTHING], ids=["least", "everything"])
def test_the_service_starts_with_the_settings_that_the_chart_gives(values, tmp_path):
    manifests = render(values)
    for name, content in SECRETS.items():
        (tmp_path / name).write_text(content)

    for workload in of_kind(manifests, "Deployment"):
        given = environment_of(workload, manifests)
        settings = load(
            {k: v.replace("/run/secrets/execution-plane", str(tmp_path)) for k, v in given.items()}
        )

        assert settings.database.url.get_secret_value() == SECRETS["database-url"]
        assert settings.server.host == "0.0.0.0"
        assert settings.server.max_body_bytes == 20_000_000
        assert settings.leases.lease_seconds == 45.5
        assert settings.telemetry.access_log is False
        assert settings.identity.grants[0].role == "runner"
        [container] = pod_of(workload)["containers"]
        assert [port["containerPort"] for port in container["ports"]] == [settings.server.port]
        assert (settings.server.tls_key_file is not None) == ("tls" in values)


def test_secrets_are_mounted_and_stand_in_no_manifest():
    for workload in [m for m in render(EVERYTHING) if m["kind"] in {"Deployment", "Job"}]:
        pod = pod_of(workload)
        [container] = pod["containers"]
        [mount] = [m for m in container["volumeMounts"] if m["name"] == "secrets"]
        [volume] = [v for v in pod["volumes"] if v["name"] == "secrets"]
        files = {f"{mount['mountPath']}/{item['path']}" for item in volume["secret"]["items"]}

        named = {e["value"] for e in container["env"] if e["name"].endswith("_FILE")}
        assert named == files
        assert volume["secret"]["secretName"] == "service-secrets"


def test_the_database_is_migrated_before_anything_else():
    [job] = of_kind(render(VALUES), "Job")

    [container] = pod_of(job)["containers"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert container["args"] == ["migrate"]
    # Before the first installation there is neither our ServiceAccount nor our ConfigMap.
    assert "serviceAccountName" not in pod_of(job)
    assert "envFrom" not in container


# --- how it lives and what it may ----------------------------------------------------------------


@pytest.mark.parametrize("values", [VALUES, EVERYTHING], ids=["least", "everything"])
def test_running_requests_may_end_before_the_pod_is_killed(values):
    manifests = render(values)
    for workload in of_kind(manifests, "Deployment"):
        pod = pod_of(workload)
        [container] = pod["containers"]
        graceful = environment_of(workload, manifests)[
            "EXECUTION_PLANE_SERVER__GRACEFUL_STOP_SECONDS"
        ]
        [_, before] = container["lifecycle"]["preStop"]["exec"]["command"]

        assert pod["terminationGracePeriodSeconds"] >= int(graceful) + int(before) + 5


def test_probes_ask_the_right_questions_over_the_right_scheme():
    for values, scheme in ((VALUES, "HTTP"), (EVERYTHING, "HTTPS")):
        for workload in of_kind(render(values), "Deployment"):
            [container] = pod_of(workload)["containers"]
            probes = {
                name: container[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness")
            }

            assert probes["liveness"]["path"] == "/livez"
            assert probes["readiness"]["path"] == "/readyz"
            assert {probe["scheme"] for probe in probes.values()} == {scheme}


def test_no_container_may_more_than_it_needs():
    for workload in [m for m in render(EVERYTHING) if m["kind"] in {"Deployment", "Job"}]:
        pod = pod_of(workload)
        [container] = pod["containers"]

        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]


def test_metrics_are_not_reachable_from_outside():
    [ingress] = of_kind(render(EVERYTHING), "Ingress")

    [rule] = ingress["spec"]["rules"]
    assert {p["path"] for p in rule["http"]["paths"]} == {"/v1", "/push", "/docs", "/openapi.json"}


# --- values that are refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"replica": 3}, "replica"),
        ({"image": {"repositry": "x"}}, "repositry"),
        ({"replicas": "two"}, "replicas"),
        ({"settings": {**VALUES["settings"], "DATABASE__URL": "postgresql://"}}, "DATABASE__URL"),
        ({"settings": {**VALUES["settings"], "SERVER__PORT": 1}}, "SERVER__PORT"),
        ({"settings": {"IDENTITY__ISSUERS": {"a": {}}}}, "IDENTITY__GRANTS is required"),
        ({"secrets": {"existingSecret": ""}}, "existingSecret is required"),
        ({"gracefulStopSeconds": 0}, "gracefulStopSeconds"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_value_is_refused_by_name(change, sentence):
    with pytest.raises(Exception, match=re.escape(sentence)):
        render({**VALUES, **change})


def test_every_value_has_its_place_in_the_schema():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    assert set(values) <= set(schema["properties"])
    assert schema["additionalProperties"] is False
