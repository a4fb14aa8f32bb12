"""The socket of a server."""

from __future__ import annotations

import asyncio
import socket

import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.server.running import bind


@pytest.mark.enable_socket
def test_an_address_that_cannot_be_used_is_named_before_models_are_loaded():
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(ResourceError, match="cannot be used: address already in use"):
            bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UsageError, match="no such host"):
        bind("nowhere.invalid", 0)


@pytest.mark.enable_socket
def test_small_answers_are_sent_at_once():
    async def accept() -> int:
        accepted = asyncio.get_running_loop().create_future()
        with bind("127.0.0.1", 0) as listener:
            server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), sock=listener)
            _, client = await asyncio.open_connection(*listener.getsockname())
            writer = await accepted
            at_once = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for each in (client, writer, server):
                each.close()
        return int(at_once)

    assert asyncio.run(accept())
