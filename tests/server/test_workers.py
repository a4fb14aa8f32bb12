"""Workers at one address: a dead one is started again, and all end with their parent."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertkit.errors import UsageError
from bertkit.server.running import bind_several
from bertkit.server.workers import check_workers

PROGRAM = """
import os, socket, sys
from bertkit.server.workers import METRICS, fork_workers

sockets = [socket.socket(fileno=int(number)) for number in sys.argv[2:]]
number = fork_workers(sockets)
if number is None:
    print("all have ended", flush=True)
elif sys.argv[1] == "refuse":
    sys.exit(4)
else:
    sockets[number].listen()
    # in one write, since both workers write to one pipe
    print(f"worker {os.getpid()} {os.environ[METRICS]}\\n", end="", flush=True)
    while True:
        connection, _ = sockets[number].accept()
        connection.sendall(b"%d" % os.getpid())
        connection.close()
"""


@contextlib.contextmanager
def working(how: str):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with contextlib.ExitStack() as sockets:  # made here, since what makes them takes long to import
        servers = [sockets.enter_context(server) for server in bind_several("127.0.0.1", 0, 2)]
        numbers, port = [server.fileno() for server in servers], servers[0].getsockname()[1]
        command = [sys.executable, "-c", PROGRAM, how, *map(str, numbers)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, **streams, text=True, env=environment, pass_fds=numbers)
    try:
        yield process, port
    finally:
        process.kill()
        process.communicate()


def ask(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        return int(connection.recv(20))


def wait_until(is_true) -> None:
    until = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.05)


def is_refused(port: int) -> bool:
    try:
        ask(port)
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):  # it ends while it is asked
        return False
    return False


@pytest.mark.enable_socket
def test_a_killed_worker_is_started_again_and_all_end_with_a_signal():
    with working("answer") as (process, port):
        lines = [process.stdout.readline().split() for _ in range(2)]
        first, folder = {int(line[1]) for line in lines}, Path(lines[0][2])
        wait_until(lambda: {ask(port) for _ in range(20)} == first)  # both get connections
        killed = min(first)
        os.kill(killed, signal.SIGKILL)
        again = int(process.stdout.readline().split()[1])
        wait_until(lambda: {ask(port) for _ in range(20)} == first - {killed} | {again})
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "all have ended\n" and process.wait(20) == 0
        assert is_refused(port) and not folder.exists()


@pytest.mark.enable_socket
def test_workers_end_where_their_parent_was_killed():
    with working("answer") as (process, port):
        for _ in range(2):
            process.stdout.readline()
        process.kill()
        wait_until(lambda: is_refused(port))


@pytest.mark.enable_socket
def test_a_worker_that_refuses_to_run_ends_all_with_its_exit_code():
    with working("refuse") as (process, _):
        assert process.wait(30) == 4


def test_a_system_without_fork_has_one_worker(monkeypatch):
    check_workers(2)
    monkeypatch.delattr("os.fork")
    check_workers(1)
    with pytest.raises(UsageError, match="--workers 2: this system has no such workers"):
        check_workers(2)
