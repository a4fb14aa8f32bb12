"""Model folders: the demo model, a directory, the hub's cache, or a download that never waits long for the network."""

from __future__ import annotations

import functools
import os
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from bertkit.errors import ModelError, UnavailableError, closest
from bertkit.recipe import typed_path
from bertkit.storage.checksums import check_model

_TIMEOUT = 1.0  # seconds that the hub has to answer: the longest that a dead network may delay a command
_OFFLINE_MODULES = {"huggingface_hub.constants", "datasets.config"}
_MODEL_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "pytorch_model*.bin"]


@functools.cache
def is_online() -> bool:
    """Tell whether the hub can be reached; with a proxy set, assume that it can."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    answered = threading.Event()

    def connect() -> None:
        try:
            address = (endpoint.hostname or "", endpoint.port or 443)
            with socket.create_connection(address, timeout=_TIMEOUT):
                answered.set()
        except OSError:
            return

    connecting = threading.Thread(target=connect, daemon=True)  # resolving a host name has no timeout of its own
    connecting.start()
    connecting.join(_TIMEOUT)
    return answered.is_set()


def go_offline_if_needed() -> None:
    """Put the Hugging Face libraries in offline mode if the hub cannot be reached, also those imported already."""
    if not is_online():
        os.environ["HF_HUB_OFFLINE"] = "1"
        for library in _OFFLINE_MODULES & sys.modules.keys():
            sys.modules[library].HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def find_model(name: str) -> Path:
    """Find the folder of a model: ``demo``, a directory, or a hub name, whose model is cached or downloaded.

    Raises:
        ModelError: a path that is not a directory, or a run or a checkpoint of bertkit that is damaged or unfinished.
        UnavailableError: a model that is neither cached nor reachable, or that the hub refuses.
    """
    if name == "demo":
        return Path(__file__).parent / "demo" / "model"
    folder = typed_path(name)
    if folder.is_dir():
        check_model(folder)
        return folder
    if folder.is_file():
        raise ModelError("not a model folder but a file", "name the folder that it is in", file=name)
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"no such directory: {name}", _list_folders(folder.parent))
    folder = _snapshot(name)
    check_model(folder)
    return folder


def cached_models() -> list[str]:
    """List the names of the models in the hub's cache."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    folders = (snapshots.parent for snapshots in cache.glob("models--*/snapshots"))
    return sorted(folder.name.removeprefix("models--").replace("--", "/") for folder in folders)


def _snapshot(name: str) -> Path:
    go_offline_if_needed()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_MODEL_FILES, local_files_only=not is_online()))
    except HFValidationError:
        raise ModelError(f"{name!r} is neither a directory nor a hub name", _list_folders(Path())) from None
    except LocalEntryNotFoundError:
        raise UnavailableError(
            f"{name!r} is neither a directory nor in the cache, and the hub cannot be reached", _alternatives(name)
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no answer"
        meaning = {401: "not logged in, or no such model", 403: "gated access", 404: "no such model"}
        raise UnavailableError(
            f"cannot download {name!r} from the hub: {meaning.get(status, status)}",
            "check the name, or log in with `hf auth login`",
        ) from None


def _alternatives(name: str) -> str:
    """Describe what to do about a model that cannot be downloaded."""
    cached = cached_models()
    matches = closest(name, cached).rstrip("?") if cached else "the cache is empty"
    return (
        f"{matches}; or use --model DIR (with config.json, weights and tokenizer.json), --model demo "
        f"(comes with bertkit), or `hf download {name} --local-dir DIR` on a connected machine, then copy DIR here"
    )


def _list_folders(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} does not exist either"
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    return f"folders in {folder.resolve()}: {', '.join(names[:12]) or 'none'}"
