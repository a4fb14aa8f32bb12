"""Signals ask a run to stop; what they did before, they do again afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from bertkit.training.stopping import handle_signals
from tests.conftest import finetune


def test_signals_are_handled_as_before_afterwards(run, tiny_model, toy_data):
    import signal

    before = signal.getsignal(signal.SIGTERM)
    assert finetune(run, tiny_model, toy_data, "--epochs", 1).code == 0
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.fixture
def foreground():
    """Ctrl-C as a command in the foreground has it, wherever the tests run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("foreground")
def test_the_first_signal_asks_to_stop_and_usr1_asks_for_a_checkpoint():
    with handle_signals() as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert (stop.signal, stop.save) == (0, True)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGINT
        assert stop.error().exit_code == 130
        assert "stopped by Ctrl-C" in str(stop.error())


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_second_signal_ends_the_process_at_once(name):
    script = (
        "import os, signal, time\nfrom bertkit.training.stopping import handle_signals\n"
        f"with handle_signals():\n    os.kill(os.getpid(), signal.{name})\n    print('goes on', flush=True)\n"
        f"    os.kill(os.getpid(), signal.{name})\n    time.sleep(60)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (ended.returncode, ended.stdout) == (-getattr(signal, name), "goes on\n")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_that_the_process_was_started_to_ignore_stays_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with handle_signals() as stop:
            os.kill(os.getpid(), number)
            assert (stop.signal, stop.save) == (0, False)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_thread_leaves_signals_to_the_main_thread():
    handlers = []

    def work():
        with handle_signals():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]
