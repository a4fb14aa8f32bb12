"""The manifests of the docs agree with the server: addresses, port, options, and the time that it takes to end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from bertkit.cli.main import app
from bertkit.server.batching import Limits

ROOT = Path(__file__).parents[2]
IMAGE = (ROOT / "bertkit/reports/package.Dockerfile.j2").read_text()


def manifests() -> dict[str, dict]:
    """Return the manifests of the page by their kind."""
    page = (ROOT / "docs/serving.md").read_text()
    blocks = re.findall(r'^```yaml title="(?:kubernetes|kserve)\.yaml"\n(.*?)^```$', page, re.DOTALL | re.MULTILINE)
    return {one["kind"]: one for block in blocks for one in yaml.safe_load_all(block)}


def pods() -> dict[str, dict]:
    found = manifests()
    return {
        "Deployment": found["Deployment"]["spec"]["template"]["spec"],
        "InferenceService": found["InferenceService"]["spec"]["predictor"],
    }


@pytest.mark.parametrize("kind", ["Deployment", "InferenceService"])
def test_a_pod_asks_the_server_for_what_it_has(kind, client):
    (container,) = pods()[kind]["containers"]
    assert f"EXPOSE {container['ports'][0]['containerPort']}" in IMAGE
    ports = {container["ports"][0].get("name"), container["ports"][0]["containerPort"]}
    for name, path in (("livenessProbe", "health"), ("readinessProbe", "ready")):
        probe = container[name]["httpGet"]
        assert probe["port"] in ports and path in probe["path"]
        assert client.get(probe["path"]).status == 200
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pods()[kind]["terminationGracePeriodSeconds"] > 5 + Limits().answer_seconds


@pytest.mark.parametrize("kind", ["Deployment", "InferenceService"])
def test_the_arguments_of_a_pod_are_options_of_serve(kind):
    import typer

    (container,) = pods()[kind]["containers"]
    serve = typer.main.get_command(app).commands["serve"]
    context = serve.make_context("serve", ["--host", "0.0.0.0", *container["args"]])
    assert context.params["runs"] == ["sst2=model"] and context.params["drain"] == 5
    image = container["image"].rpartition("/")[2]
    assert container["args"][0] == f"{image}=model"


def test_selectors_name_the_pods_and_an_update_takes_none_away():
    found = manifests()
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    (container,) = pods()["Deployment"]["containers"]
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
