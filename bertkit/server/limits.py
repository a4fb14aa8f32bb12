"""What the server bears: how much may wait, how long, and how large a request may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of one server; each has its own status where a request exceeds it."""

    queue_rows: int = 1024
    """Rows of one model that wait or are computed; a request that does not fit gets 429."""
    request_rows: int = 256
    """Rows, or texts, of one request; more get 413."""
    body_bytes: int = 1 << 20
    """Bytes of a request's body; more get 413."""
    answer_seconds: float = 30.0
    """From a request's last byte to its answer; later ones get 504."""
    read_seconds: float = 10.0
    """From a connection's first byte to the last of the request's body; later ones get 408."""
    batch_tokens: int = 4096
    """Tokens that are computed at a time."""
    connections: int = 1024
    """Open at the same time; more get 503."""
    drain_seconds: float = 1.0
    """For which the server goes on accepting requests after SIGTERM, so that a load balancer sees it is not ready."""
