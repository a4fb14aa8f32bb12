"""Requests that get no answer: the status, and one line that says why."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from bertkit.errors import BertkitError, DataError, UsageError

TYPES = {
    400: "json",
    401: "key",
    404: "not_found",
    405: "method",
    408: "timeout",
    413: "too_large",
    422: "validation",
    429: "overloaded",
    503: "unavailable",
    504: "timeout",
}
"""Status -> the word of it in answers."""

CLIENT_GONE = 499
"""The status of a request whose client has left, as nginx counts it; nobody receives it."""


class RefusedError(HTTPException):
    """A request that gets a status other than 200."""


def refusal_of(error: Exception) -> RefusedError:
    """Return how an error of an input is answered: those of the input with their reason, others without."""
    if isinstance(error, RefusedError):
        return error
    # The mistake is in the request, and says what to change; any other error may name files of the server.
    if isinstance(error, (DataError, UsageError)):
        column = f" (column {error.column!r})" if error.column else ""
        remedy = f" - {error.remedy}" if error.remedy else ""
        return RefusedError(422, " ".join(f"{error.what}{column}{remedy}".split()))
    if isinstance(error, BertkitError):
        return RefusedError(500, error.what)
    return RefusedError(500, "the model failed on this input; the log of the server has the reason")


def refuse(path: str, refused: HTTPException) -> Response:
    """Build the answer to a refused request, at OpenAI's addresses in its shape, else in that of TEI."""
    status, name = refused.status_code, TYPES.get(refused.status_code, "backend")
    content: dict[str, object] = {"error": refused.detail, "error_type": name}
    if path.endswith(("/v1/embeddings", "/v1/decisions")):
        content = {"error": {"message": refused.detail, "type": name, "code": status}}
    return JSONResponse(content, status, refused.headers)
