"""The story of a model and a data set of a hub on the loopback, told by real commands: `python -m tests.hub_story`.

They are fetched; downloads are cut off, damaged and refused; the hub goes away, and the cache serves.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.loopback_hub import Hub, serve_hub

WEIGHTS = "model.safetensors"
TRAIN = "data/train-00000-of-00001.parquet"
FINETUNE = "finetune classify --model me/model --data me/rows --epochs 1 --set training.precision=fp32 --output run"
REFUSALS = [
    (401, {}),
    (403, {"X-Error-Code": "GatedRepo"}),
    (403, {}),
    (404, {"X-Error-Code": "RepoNotFound"}),
    (429, {"Retry-After": "1"}),
    (500, {}),
    (503, {}),
]


def fill(hub: Hub, folder: Path) -> None:
    """Put a model and a data set on the hub: the demo's, beside files that are never read."""
    import shutil

    import datasets
    import torch
    from safetensors.torch import load_file, save_file

    from bertkit.data.demo import read_demo_rows
    from bertkit.recipe import load_recipe
    from bertkit.storage.hub import find_model

    if not folder.exists():
        shutil.copytree(find_model("demo"), folder / "model")
        large = {
            **load_file(folder / "model" / WEIGHTS),
            "unused": torch.zeros(6_000_000),
        }  # downloads save every 10 MB
        save_file(large, folder / "model" / WEIGHTS, {"format": "pt"})
        for name in ("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "README.md"):
            (folder / "model" / name).write_bytes(b"not read" * 1000)
        (folder / "rows" / "data").mkdir(parents=True)
        for split in ("train", "validation", "test"):
            rows = read_demo_rows(load_recipe("cola"), split, 64)
            table = datasets.Dataset.from_list([{"text": row["text"], "label": row.get("label")} for row in rows])
            table.to_parquet(folder / "rows" / TRAIN.replace("train", split))
    hub.add("models", "me/model", folder / "model")
    hub.add("datasets", "me/rows", folder / "rows")


def run(hub: Hub, home: Path, command: str, say: Callable[[str], None], **environment: str) -> tuple[int, str]:
    """Run a command whose cache is below a folder, and say what it printed and what the hub was asked for."""
    hub.requests.clear()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home / "hf"), "BERTKIT_CACHE": str(home / "kept")}
    own |= {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    home.mkdir(exist_ok=True)
    ended = subprocess.run(
        [sys.executable, "-m", "bertkit", *shlex.split(command)],
        cwd=home,
        capture_output=True,
        text=True,
        env={**inherited, **own, **environment},
    )
    shown = " ".join([*(f"{name}={value}" for name, value in environment.items()), "bertkit", command])
    say(f"$ {shown}")
    for line in (ended.stderr + ended.stdout).replace(hub.url, "http://127.0.0.1:PORT").splitlines():
        if line.strip() and "%" not in line and not line.startswith(("Next", "  open", "  bertkit")):
            say(f"  | {line}")
    asked = Counter(request.method for request in hub.requests)
    say(f"  exit {ended.returncode}; the hub was asked: {', '.join(f'{n} {m}' for m, n in asked.items()) or 'nothing'}")
    for name in hub.fetched():
        ranges = [r.range or "whole" for r in hub.requests if r.method == "GET" and r.path.endswith(f"/{name}")]
        say(f"    sent {name}: {', '.join(ranges)}")
    return ended.returncode, ended.stderr


def refuse(folder: Path, refusal: tuple[int, dict[str, str]], repo_type: str) -> list[str]:
    """Run a command whose model or data set the hub refuses, with an empty cache, and return what was said."""
    status, headers = refusal
    lines = [f"\n# {status} {''.join(headers.values())} for the {repo_type}"]
    with serve_hub() as hub:
        fill(hub, folder / "served")
        hub.fail(f"* /api/{repo_type}s/*", status, headers=headers)
        home = folder / f"{repo_type}-{status}-{len(headers)}"
        code, printed = run(hub, home, f"{FINETUNE} --dry-run", lines.append)
    assert code == 5, printed
    assert f"({status}" in printed.splitlines()[-1] and "Traceback" not in printed
    return lines


def tell(folder: Path, say: Callable[[str], None]) -> None:
    """Tell the story; each line goes to `say`."""
    with serve_hub() as hub:
        fill(hub, folder / "served")

        def go(home: str, command: str, code: int, expected: str = "", **environment: str) -> None:
            ended, printed = run(hub, folder / home, command, say, **environment)
            assert (ended, expected in printed) == (code, True), printed

        say("# a dry run: config, tokenizer and the splits that a run reads")
        go("first", f"{FINETUNE} --dry-run", 0, "the run will download weights")
        assert WEIGHTS not in hub.fetched() and TRAIN in hub.fetched()
        say("\n# the run: the weights too, and nothing twice")
        go("first", FINETUNE, 0)
        assert hub.fetched() == [WEIGHTS]
        say("\n# the hub is overloaded for a while, and the download is cut off twice: it goes on where it was")
        hub.fail("GET /api/models/*", 503, times=2)
        hub.fail(f"GET */{WEIGHTS}", cut_after=12_000_000, times=2)
        go("second", FINETUNE, 0, "Retrying in 1s")
        asked = [request.range for request in hub.requests if request.method == "GET" and WEIGHTS in request.path]
        assert asked == [None, "bytes=10485760-", "bytes=20971520-"]
        hub.faults.clear()
        say("\n# the download is cut off for good; the same command fetches only what is missing")
        hub.fail(f"GET */{WEIGHTS}", cut_after=0)
        go("third", FINETUNE, 5, "the connection was interrupted")
        hub.faults.clear()
        go("third", FINETUNE, 0)
        assert hub.fetched() == [*(TRAIN.replace("train", name) for name in ("test", "train", "validation")), WEIGHTS]
        say("\n# a file arrives damaged")
        hub.fail(f"GET */{TRAIN}", spoils=True, times=1)
        go("fourth", f"{FINETUNE} --dry-run", 5, "what has arrived is damaged")
        go("fourth", f"{FINETUNE} --dry-run", 0)
        with ThreadPoolExecutor(8) as pool:  # most of their time they wait to ask again
            told = [
                pool.submit(refuse, folder, *args) for args in ((r, t) for r in REFUSALS for t in ("model", "dataset"))
            ]
            for lines in told:
                for line in lines.result():
                    say(line)
        say("\n# the hub fails, but the cache has what is needed: no waiting")
        hub.fail("*", 503)
        failed = "me/rows is read from the cache: the Hub failed (503 Service Unavailable)"
        go("first", f"{FINETUNE} --restart", 0, failed)
    say("\n# the hub is gone")
    go("first", f"{FINETUNE} --restart", 0, "me/model is read from the cache (commit ")
    say("\n# the hub is gone, and nothing is in the cache")
    go("fifth", f"{FINETUNE} --restart", 5, "nor in the cache, and the Hub cannot be reached")
    say("\n# nobody is to be asked")
    go("first", f"{FINETUNE} --restart", 0, HF_HUB_OFFLINE="1")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        tell(Path(folder), print)
