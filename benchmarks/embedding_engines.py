"""One engine in a program of its own, which embeds the same texts each time it is told to.

    python -m benchmarks.embedding_engines ENGINE CASE.json FOLDER

ENGINE is `bertkit PRECISION`, `sentence-transformers` (its defaults), `sentence-transformers PRECISION` (the fastest of
several batch sizes), or `onnxruntime fp32` or `int8`. The last round's vectors are written to FOLDER/vectors.npy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.engines import Gate
from benchmarks.load import peak_memory
from benchmarks.stages import began

_BATCH_SIZES = (16, 32, 64, 128, 256)
_TRIED = 512  # texts that each batch size is tried with, all over the file

Encode = Callable[[Sequence[str]], Any]


def load_bertkit(model: str, precision: str) -> Encode:
    """Load bertkit's embedder."""
    from bertkit import Embedder

    return Embedder(model, precision=precision).encode


def load_sentence_transformers(model: str, precision: str, texts: Sequence[str]) -> tuple[Encode, int]:
    """Load sentence-transformers, and find its fastest batch size; without a precision, leave it at its defaults."""
    import torch
    from sentence_transformers import SentenceTransformer

    options = {"dtype": torch.bfloat16} if precision == "bf16" else {}
    encoder = SentenceTransformer(model, device="cpu", model_kwargs=options, local_files_only=True)
    if not precision:
        return encoder.encode, 32

    def seconds(size: int) -> float:
        start = time.process_time()
        encoder.encode(tried, batch_size=size)
        return time.process_time() - start

    tried = texts[:: max(1, len(texts) // _TRIED)]
    size = min(_BATCH_SIZES, key=lambda size: min(seconds(size) for _ in range(3)))
    return lambda texts: encoder.encode(texts, batch_size=size), size


def load_onnxruntime(model: str, precision: str, folder: Path, threads: int) -> Encode:
    """Export the encoder, and run it under bertkit's batches, pooling and normalization: sorted, hardly any padding."""
    import onnxruntime
    import torch

    from bertkit import Embedder

    file = folder / "encoder.onnx"
    columns = export(model, file)
    if precision == "int8":
        from onnxruntime.quantization import quantize_dynamic

        quantize_dynamic(file, folder / "int8.onnx", per_channel=True)
        file = folder / "int8.onnx"
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])

    class OnnxEncoder(torch.nn.Module):
        def forward(self, **batch: torch.Tensor) -> SimpleNamespace:
            [states] = session.run(None, {name: batch[name].numpy() for name in columns})
            return SimpleNamespace(last_hidden_state=torch.from_numpy(states))

    embedder = Embedder(model, precision="fp32")
    sentence_encoder = embedder._loaded.encoder
    sentence_encoder.encoder = OnnxEncoder()  # type: ignore[assignment]
    sentence_encoder.on_cpu = torch.nn.Parameter(torch.zeros(1))  # a weight tells where batches go
    return embedder.encode


def export(model: str, file: Path) -> list[str]:
    """Write an encoder as ONNX, and return the names of its inputs."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = AutoModel.from_pretrained(model, attn_implementation="eager").eval()

        def forward(self, *inputs: torch.Tensor) -> Any:
            return self.encoder(**dict(zip(columns, inputs, strict=True))).last_hidden_state

    tokenizer = AutoTokenizer.from_pretrained(model)
    batch = dict(tokenizer(["a text", "a longer text, which is padded to"], padding=True, return_tensors="pt"))
    columns = list(batch)
    axes = {name: {0: "texts", 1: "tokens"} for name in [*columns, "states"]}
    names = {"input_names": columns, "output_names": ["states"], "dynamic_axes": axes}
    with torch.inference_mode():
        torch.onnx.export(States(), tuple(batch.values()), str(file), **names, dynamo=False, opset_version=17)
    return columns


def main() -> None:
    name, file, folder = sys.argv[1:]
    case = json.loads(Path(file).read_text(encoding="utf-8"))
    texts, (engine, _, precision) = case["texts"], name.partition(" ")
    gate, size = Gate(), None
    if engine == "bertkit":
        encode = load_bertkit(case["model"], precision)
    elif engine == "onnxruntime":
        encode = load_onnxruntime(case["model"], precision, Path(folder), case["threads"])
    else:
        encode, size = load_sentence_transformers(case["model"], precision, texts)
    encode(texts[:64])  # what is prepared with the first batch
    import numpy as np

    gate.tell({"ready": time.monotonic() - began()})
    while True:
        gate.listen()
        start, processor = time.perf_counter(), time.process_time()
        vectors = encode(texts)
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
        np.save(Path(folder) / "vectors.npy", np.asarray(vectors, dtype=np.float32))
        memory = round(peak_memory(os.getpid()))
        gate.tell({"seconds": seconds, "cpu": processor, "memory": memory, "batch_size": size})


if __name__ == "__main__":
    main()
