"""A server in a process of its own: what it answers, what disturbs it, and how it ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from bertkit.errors import UnavailableError
from bertkit.progress import stage, use_progress
from bertkit.workflows.serve import JsonFormatter, LoggedProgress, check_packages

ROOT = Path(__file__).parent.parent.parent


@dataclass
class Server:
    url: str
    port: int
    process: subprocess.Popen
    log: Path

    def post(self, content, path="/predict"):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(content).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())


@contextlib.contextmanager
def serving(folder, *arguments):
    log = folder / "log.txt"
    command = [sys.executable, "-m", "bertkit", "serve", *map(str, arguments), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with log.open("w") as stream:
        process = subprocess.Popen(command, stderr=stream, stdout=stream, env=environment)
    try:
        while not (found := re.search(r"at (http://127.0.0.1:(\d+))/ ", log.read_text())):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield Server(found[1], int(found[2]), process, log)
    finally:
        process.kill()
        process.wait()


def record(**extra):
    made = logging.LogRecord("bertkit", logging.INFO, "file", 1, "loading %s", ("a",), None)
    made.__dict__.update(extra)
    return json.loads(JsonFormatter().format(made))


def test_an_event_is_one_object():
    assert record().items() >= {"level": "info", "message": "loading a"}.items()
    assert record(fields={"path": "/embed", "status": 200})["status"] == 200
    try:
        raise ValueError("why")
    except ValueError:
        assert "ValueError: why" in record(exc_info=sys.exc_info())["traceback"]


def test_stages_are_events(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("bertkit"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("bertkit"), "handlers", [])
    with caplog.at_level(logging.INFO, "bertkit"), use_progress(LoggedProgress()), stage("loading a"):
        pass
    assert caplog.messages == ["loading a ..."]


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr("bertkit.workflows.serve.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="serving needs fastapi, uvicorn, prometheus_client"):
        check_packages()


@pytest.mark.slow
@pytest.mark.enable_socket
def test_a_stop_under_load_loses_no_request_that_has_arrived(tmp_path, trained):
    answers, lost, refused, stopping = [], [], [], threading.Event()

    def ask_on(number):
        connection = None
        while True:
            try:
                connection = connection or http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                connection.connect() if connection.sock is None else None
            except ConnectionRefusedError:
                connection.close()
                refused.append(number)
                return
            try:
                body = json.dumps({"inputs": "good" if number % 2 else "awful"})
                connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
                reply = connection.getresponse()
                answers.append((number % 2, reply.status, json.loads(reply.read())[0]["label"]))
            except Exception as error:
                # the connection was opened in the moment in which the server stopped
                is_refused = isinstance(error, ConnectionError) and stopping.is_set()
                (refused if is_refused else lost).append(error)
                connection.close()
                return
            if reply.will_close:
                connection.close()
                connection = None

    with serving(tmp_path, trained) as server:
        threads = [threading.Thread(target=ask_on, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(2)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.8)
        assert not lost  # while the server drains
        stopping.set()
        for thread in threads:
            thread.join(60)
        assert server.process.wait(30) == 0
    assert not lost
    assert len(refused) == 8
    assert set(answers) == {(1, 200, "good"), (0, 200, "bad")}
    assert server.log.read_text().endswith("stopped\n")


class Balancer:
    """Sends requests to the servers that say they are ready, as a load balancer does."""

    def __init__(self):
        self.servers, self.ready, self.answers = {}, set(), []
        self.ends = threading.Event()
        self.threads = [threading.Thread(target=target) for target in (self._watch, *8 * [self._ask_on])]

    def _watch(self):
        while not self.ends.wait(0.05):
            for name, server in list(self.servers.items()):
                try:
                    with urllib.request.urlopen(f"{server.url}/ready", timeout=5):
                        self.ready.add(name)
                except OSError:
                    self.ready.discard(name)

    def _ask_on(self):
        while not self.ends.is_set():
            name = random.choice(sorted(self.ready))
            try:
                answer = self.servers[name].post({"instances": [{"text": "good"}]}, f"/v1/models/{name}:predict")
                self.answers.append((name, answer["predictions"][0]["prediction"]))
            except OSError as error:
                self.answers.append((name, error))

    def wait_for(self, name):
        while name not in self.ready:
            time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.enable_socket
def test_a_rolling_change_of_version_loses_no_request(tmp_path, trained):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    balancer = Balancer()
    with serving(tmp_path / "old", f"old={trained}") as old:
        balancer.servers["old"] = old
        balancer.threads[0].start()
        balancer.wait_for("old")
        for thread in balancer.threads[1:]:
            thread.start()
        with serving(tmp_path / "new", f"new={trained}") as new:
            balancer.servers["new"] = new
            balancer.wait_for("new")
            old.process.send_signal(signal.SIGTERM)
            assert old.process.wait(60) == 0
            time.sleep(1)
            balancer.ends.set()
            for thread in balancer.threads:
                thread.join(60)
    assert set(balancer.answers) == {("old", "good"), ("new", "good")}
    assert balancer.answers[-1][0] == "new"


@pytest.mark.slow
@pytest.mark.enable_socket
def test_bad_clients_disturb_no_other(tmp_path, trained):
    with serving(tmp_path, trained, "--connections", "400", "--timeout", "20") as server:
        many = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]  # silent ones
        slow = socket.create_connection(("127.0.0.1", server.port))
        slow.sendall(
            b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
        )
        gone = socket.create_connection(("127.0.0.1", server.port))
        body = b'{"inputs": "good"}'
        gone.sendall(
            b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        gone.close()
        garbage = socket.create_connection(("127.0.0.1", server.port))
        garbage.sendall(b"\x16\x03\x01 no http at all\r\n\r\n")
        assert server.post({"inputs": "good"})[0]["label"] == "good"
        with pytest.raises(urllib.error.HTTPError) as large:
            server.post({"inputs": "x" * 10_000_000})
        assert large.value.code == 413
        large.value.close()
        assert garbage.recv(100).startswith(b"HTTP/1.1 400")
        slow.close()
        garbage.close()
        for connection in many:
            connection.close()
        assert server.post({"inputs": "awful"})[0]["label"] == "bad"
    assert "Traceback" not in server.log.read_text()
