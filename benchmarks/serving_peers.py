"""Servers beside which `benchmarks.serving` measures bertkit; they answer at /predict in the same shape.

    python -m benchmarks.serving_peers "naive|naive, bf16|LitServe" RUN PORT

The naive one is what people write first: FastAPI and a pipeline of transformers, called by the handler of each request.
LitServe gathers requests to batches of up to 32 and calls the same pipeline.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from benchmarks.peers import load_pipeline
from benchmarks.serving import LITSERVE, NAIVE, NAIVE_BF16

try:
    import litserve
except ImportError:  # the naive server goes without it
    litserve = None


def run_naive(run: str, port: int, dtype: str = "float32") -> None:
    """Serve the pipeline with FastAPI, one request after the other."""
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
    """What LitServe calls; it stands here because LitServe's processes import it."""

    def __init__(self, run: str) -> None:
        super().__init__(max_batch_size=32, batch_timeout=0.005)
        self.run = run

    def context(self, device: str) -> None:
        """Load the model, in the process that computes."""
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
    """Serve the pipeline with LitServe; a batch waits at most 5 ms for more requests."""
    server = litserve.LitServer(Classifier(run), accelerator="cpu")
    server.run(host="127.0.0.1", port=port, log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    engine, folder, number = sys.argv[1:]
    run = {NAIVE: run_naive, NAIVE_BF16: partial(run_naive, dtype="bfloat16"), LITSERVE: run_litserve}[engine]
    run(folder, int(number))
