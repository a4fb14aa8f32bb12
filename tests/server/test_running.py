"""The socket of a server."""

from __future__ import annotations

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
