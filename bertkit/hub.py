"""Model folders: the demo's, a directory, the hub's cache, or a download, without ever waiting on a dead network."""

from __future__ import annotations

import functools
import os
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from bertkit.errors import ModelError, UnavailableError, closest

_PATIENCE = 1.0  # seconds for the hub to answer; a dead network must not cost a user more
_WITH_SWITCH = {"huggingface_hub.constants", "datasets.config"}
_WANTED = ["*.json", "*.txt", "*.model", "*.safetensors", "pytorch_model*.bin"]


@functools.cache
def is_online() -> bool:
    """Tell whether the hub can be reached; with a proxy set, that is left to the proxy."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    answered = threading.Event()

    def knock() -> None:
        try:
            address = (endpoint.hostname or "", endpoint.port or 443)
            with socket.create_connection(address, timeout=_PATIENCE):
                answered.set()
        except OSError:
            return

    knocking = threading.Thread(target=knock, daemon=True)  # a name look-up has no time-out of its own
    knocking.start()
    knocking.join(_PATIENCE)
    return answered.is_set()


def go_offline_if_needed() -> None:
    """Tell the Hugging Face libraries not to try a network that is not there; they read the variable when imported."""
    if not is_online():
        os.environ["HF_HUB_OFFLINE"] = "1"
        for library in _WITH_SWITCH & sys.modules.keys():
            sys.modules[library].HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def find_model(name: str) -> Path:
    """Find the folder of a model: ``demo``, a directory, or a hub name (cached, else downloaded).

    Raises:
        ModelError: a path that is not a directory.
        UnavailableError: a hub name that is neither cached nor reachable, or that the hub does not give.
    """
    if name == "demo":
        return Path(__file__).parent / "demo" / "model"
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_file():
        raise ModelError("a file where a model folder is wanted", "name the folder it is in", file=name)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"no such directory: {name}", _what_is_there(folder.parent))
    return _snapshot(name)


def cached_models() -> list[str]:
    """List the models in the hub's cache by name."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    folders = (snapshots.parent for snapshots in cache.glob("models--*/snapshots"))
    return sorted(folder.name.removeprefix("models--").replace("--", "/") for folder in folders)


def _snapshot(name: str) -> Path:
    go_offline_if_needed()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED, local_files_only=not is_online()))
    except HFValidationError:
        raise ModelError(f"{name!r} is neither a directory nor a hub name", _what_is_there(Path())) from None
    except LocalEntryNotFoundError:
        raise UnavailableError(
            f"{name!r} is neither a directory nor in the cache, and the hub cannot be reached", _ways_on(name)
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no answer"
        meaning = {401: "not logged in, or no such model", 403: "access is gated", 404: "no such model"}
        raise UnavailableError(
            f"the hub does not give {name!r}: {meaning.get(status, status)}",
            "look the name up, or log in with `hf auth login`",
        ) from None


def _ways_on(name: str) -> str:
    cached = cached_models()
    near = closest(name, cached).rstrip("?") if cached else "the cache is empty"
    return (
        f"{near}; three ways on: --model DIR (any with config.json, weights and tokenizer.json), --model demo "
        f"(comes with bertkit), or on a connected machine `hf download {name} --local-dir DIR`, and copy it"
    )


def _what_is_there(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} does not exist either"
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    return f"folders in {folder.resolve()}: {', '.join(names[:12]) or 'none'}"
