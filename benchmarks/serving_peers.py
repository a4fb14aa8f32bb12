"""Peers of `benchmarks.serving`: servers that respond at /predict in bertkit's format.

    python -m benchmarks.serving_peers "naive|naive, bf16|LitServe" RUN PORT

The naive server calls a pipeline of transformers in the handler of each request of FastAPI. LitServe calls the same
pipeline with batches of up to 32 requests.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from benchmarks.peers import load_pipeline
from benchmarks.serving import LITSERVE, NAIVE, NAIVE_BF16

try:
    import litserve
except ImportError:  # The naive server does not need it.
    litserve = None


def run_naive(run: str, port: int, dtype: str = "float32") -> None:
    """Serve the pipeline with FastAPI, one request at a time."""
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Text(BaseModel):
        inputs: str

    app, classify = FastAPI(), load_pipeline(run, dtype, 1, top_k=None)

    async def predict(body: Text) -> Any:
        return classify(body.inputs)

    predict.__annotations__["body"] = Text
    app.post("/predict")(predict)
    uvicorn.run(app, port=port, log_level="warning")


class Classifier(litserve.LitAPI if litserve else object):  # type: ignore[misc]
    """API of LitServe; its processes import this module."""

    def __init__(self, run: str) -> None:
        super().__init__(max_batch_size=32, batch_timeout=0.005)
        self.run = run

    def context(self, device: str) -> None:
        """Load the model in the worker process."""
        self.classify = load_pipeline(self.run, "float32", 32, top_k=None)

    def decode_request(self, request: dict[str, str]) -> str:
        """Return the text of a request."""
        return request["inputs"]

    def predict(self, x: list[str]) -> Any:
        """Classify a batch of texts."""
        return self.classify(x)

    def encode_response(self, output: Any) -> Any:
        """Return the labels and scores of a text."""
        return output


def run_litserve(run: str, port: int) -> None:
    """Serve the pipeline with LitServe."""
    server = litserve.LitServer(Classifier(run), accelerator="cpu")
    server.run(host="127.0.0.1", port=port, log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    engine, folder, port = sys.argv[1:]
    servers = {NAIVE: run_naive, NAIVE_BF16: partial(run_naive, dtype="bfloat16"), LITSERVE: run_litserve}
    servers[engine](folder, int(port))
