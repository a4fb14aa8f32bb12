"""What the hub answers, in one line with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bertkit.errors import UnavailableError, message_of

TRY_LATER = "try again later"
REPEAT = "repeat the command: whole files are kept"


@contextmanager
def answering(subject: str = "") -> Iterator[None]:
    """Turn what the hub's libraries raise inside into one line, after `subject`.

    Raises:
        UnavailableError: the hub cannot be reached, breaks off, or its answer is no.
    """
    from huggingface_hub.errors import XetDownloadError
    from huggingface_hub.utils import httpx

    try:
        yield
    except (OSError, httpx.HTTPError, RuntimeError, XetDownloadError) as error:
        if isinstance(error, OSError) and error.errno and not isinstance(error, (ConnectionError, TimeoutError)):
            raise  # of the disk
        failed = f"the transfer failed ({message_of(error.__cause__ or error)})"
        raise explain(error, subject) or UnavailableError(subject + failed, REPEAT) from None


def explain(error: BaseException, subject: str = "") -> UnavailableError | None:
    """Say in one line, after `subject`, what the hub answered that led to an error; None if it did not come from it."""
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import httpx

    chain = [error]
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    for cause in chain:
        if isinstance(cause, HfHubHTTPError) and cause.response is not None:
            what, remedy = _read_answer(cause.response)
            return UnavailableError(subject + what, remedy)
    for cause in chain:
        reason = message_of(cause)
        if isinstance(cause, (httpx.ReadError, httpx.RemoteProtocolError)):
            return UnavailableError(f"{subject}the connection broke off ({reason})", REPEAT)
        if isinstance(cause, (httpx.TransportError, ConnectionError, TimeoutError)):
            return UnavailableError(f"{subject}the hub cannot be reached ({reason})", TRY_LATER)
    return None


def _read_answer(response: Any) -> tuple[str, str]:
    """Return what an answer of the hub that is a refusal means, and the remedy."""
    status, code = response.status_code, response.headers.get("X-Error-Code", "")
    log_in = "`hf auth login`"
    if code == "GatedRepo":
        return f"it is gated ({status})", f"ask for access on its page of the hub, then log in with {log_in}"
    if code == "RevisionNotFound":
        return f"the hub does not have this revision of it ({status})", "check the revision"
    if code == "EntryNotFound":
        return f"the hub does not have this file ({status})", TRY_LATER
    if status == 401 and "Authorization" in response.request.headers:
        return "the hub does not accept your token for it (401)", f"check the name, or log in again with {log_in}"
    if status == 429:
        wait = response.headers.get("Retry-After", "")
        when = f"in {wait} s" if wait.isdigit() else "later"
        return "the hub takes no more requests for now (429)", f"try again {when}; {log_in} raises the limit"
    if status >= 500:
        return f"the hub fails ({f'{status} {response.reason_phrase}'.strip()})", TRY_LATER
    meanings = {
        401: ("the hub does not show it without a login (401)", f"check the name, or log in with {log_in}"),
        403: ("the hub forbids it (403)", f"check what your token permits, or log in with {log_in}"),
        404: ("the hub does not have it (404)", "check the name"),
    }
    return meanings.get(status, (f"the hub answers {status} {response.reason_phrase}", TRY_LATER))
