"""What `bertkit serve` takes, and what it says before it serves."""

from __future__ import annotations

import json
import logging

import pytest

from bertkit.errors import install_command


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["runs/nix"], 4, "no such run: runs/nix"),
        (["{run}", "{run}"], 2, "two models are called 'run'"),
        (["{run}", "--json"], 2, "serve has no JSON output"),
        (["{run}", "--api-key-file", "nowhere"], 2, "no such --api-key-file (nowhere)"),
    ],
)
def test_mistakes_end_in_one_line(arguments, code, message, run, trained):
    ended = run("serve", *(argument.format(run=trained) for argument in arguments))
    assert ended.code == code
    assert message in ended.last
    assert "Traceback" not in ended.err


@pytest.mark.enable_socket
def test_the_log_is_json_from_its_first_line(run, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(logging.getLogger("bertkit"), "level", logging.INFO)  # is set back
    monkeypatch.setattr("bertkit.server.run.DrainingServer.run", lambda *_: None)
    ended = run("serve", trained, "--port", 0, "--log", "json")
    lines = list(map(json.loads, ended.err.splitlines()))
    assert (ended.code, lines[0]["level"], lines[0]["message"]) == (0, "info", "loading run ...")
    ended = run("serve", tmp_path / "nix", "--log", "json")
    (line,) = map(json.loads, ended.err.splitlines())
    assert (ended.code, line["level"], line["message"][:13]) == (4, "error", "no such run: ")


@pytest.mark.parametrize("path", ["bert", "/a b", "/bert?x", "//bert", "http://a/b"])
def test_a_prefix_that_is_none_is_refused(run, path):
    ended = run("serve", "runs/a", "--root-path", path)
    assert (ended.code, ended.last) == (
        2,
        f"error: --root-path {path!r} is not a URL path - write e.g. --root-path /bert",
    )


def test_missing_packages_end_in_one_line(run, monkeypatch):
    monkeypatch.setattr("bertkit.workflows.serve.find_spec", lambda name: None)
    ended = run("serve", "runs/a")
    assert (ended.code, ended.last) == (
        5,
        f"error: serving needs fastapi, uvicorn, prometheus_client - `{install_command('serve')}`",
    )
