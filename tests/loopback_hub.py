"""A hub of one's own on the loopback: it serves folders as the Hugging Face hub does, and fails as it is told to.

The routes are those that `huggingface_hub` and `datasets` ask for a model or a data set, and those that a model is
uploaded by. Each request is recorded.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from urllib.parse import parse_qs, unquote, urlsplit

_LARGE = (".safetensors", ".bin", ".parquet", ".h5", ".msgpack", ".onnx")  # stored by SHA-256, as Git LFS does
_API = re.compile(r"/api/(models|datasets)/(.+?)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?")
_PREUPLOAD = re.compile(r"/api/models/(.+)/preupload/main")
_BATCH = re.compile(r"/(.+)\.git/info/lfs/objects/batch")
_COMMIT = re.compile(r"/api/models/(.+)/commit/main")
_RESOLVE = re.compile(r"/(datasets/)?(.+?)/resolve/([^/]+)/(.+)")


@dataclass
class Fault:
    """What goes wrong with the requests whose method and path match a pattern, such as ``GET */model.safetensors``."""

    pattern: str
    times: int | None = None
    """So often, then no more; None for ever."""
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0
    """Wait so long before the answer."""
    cut_after: int | None = None
    """Close the connection after so many bytes of the body."""
    spoils: bool = False
    """Flip a bit in the middle of the body."""


@dataclass(frozen=True)
class Request:
    """One request that the hub was asked."""

    method: str
    path: str
    range: str | None
    token: str | None


class Hub:
    """The content of the hub, what it was asked, and what goes wrong."""

    def __init__(self) -> None:
        self.commits: dict[tuple[str, str], dict[str, dict[str, bytes]]] = {}
        self.main: dict[tuple[str, str], str] = {}
        self.private: set[str] = set()
        self.stored: dict[str, bytes] = {}  # by SHA-256, of files that were sent before their commit
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.url = ""

    def add(self, kind: str, name: str, folder: Path) -> str:
        """Serve the files of a folder as the newest commit of ``models`` or ``datasets`` and return the commit."""
        files = {
            str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()
        }
        return self.commit(kind, name, files)

    def commit(self, kind: str, name: str, files: dict[str, bytes]) -> str:
        """Make files the newest commit and return it."""
        commit = hashlib.sha1(b"".join(path.encode() + content for path, content in files.items())).hexdigest()
        self.commits.setdefault((kind, name), {})[commit] = files
        self.main[kind, name] = commit
        return commit

    def newest(self, name: str) -> dict[str, bytes]:
        """Return the files of the newest commit of a model."""
        return self.commits["models", name][self.main["models", name]]

    def fail(self, pattern: str, status: int | None = None, **how: object) -> None:
        """Let the requests that match a pattern go wrong; see `Fault`."""
        self.faults.append(Fault(pattern, status=status, **how))  # type: ignore[arg-type]

    def fetched(self) -> list[str]:
        """List the files whose content was asked for, in alphabetical order, each once."""
        asked = (_RESOLVE.fullmatch(request.path) for request in self.requests if request.method == "GET")
        return sorted({match[4] for match in asked if match})

    def forget(self) -> None:
        """Forget requests and faults."""
        self.requests.clear()
        self.faults.clear()

    def find_fault(self, request: Request) -> Fault | None:
        """Return the first fault that a request meets, and count it."""
        for fault in self.faults:
            if fault.times != 0 and fnmatch.fnmatch(f"{request.method} {request.path}", fault.pattern):
                fault.times = None if fault.times is None else fault.times - 1
                return fault
        return None


def describe(path: str, content: bytes) -> dict[str, object]:
    """Return what a listing says of a file: its size and its checksum, SHA-256 or Git's."""
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry: dict[str, object] = {"size": len(content), "oid": git}
    if path.endswith(_LARGE):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return entry


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        with suppress(ConnectionError):  # the one who asked has gone
            self._answer()

    do_HEAD = do_GET

    def do_POST(self) -> None:
        chunked = self.headers.get("Transfer-Encoding") == "chunked"
        self.body = b"".join(self._chunks()) if chunked else self.rfile.read(int(self.headers.get("Content-Length", 0)))
        is_form = "urlencoded" in self.headers.get("Content-Type", "")
        self.form = parse_qs(self.body.decode()) if is_form else {}
        self.do_GET()

    do_PUT = do_POST

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        request = Request(self.command, path, self.headers.get("Range"), self.headers.get("Authorization"))
        if request.path.startswith("/api/agent-harnesses"):  # asked by `huggingface_hub` inside some programs, once
            return self._send(404, b"")
        self.hub.requests.append(request)
        fault = self.hub.find_fault(request) or Fault("")
        Event().wait(fault.seconds)  # not `time.sleep`, which tests replace
        if fault.status:
            return self._send(fault.status, b"{}", fault.headers)
        if self.command in ("POST", "PUT") and (answer := self._upload(path)) is not None:
            status, content = answer
            return self._send(status, json.dumps(content).encode(), {"Content-Type": "application/json"}, fault)
        if match := _RESOLVE.fullmatch(path):
            return self._send_file("datasets" if match[1] else "models", *match.group(2, 3, 4), fault)
        if match := _API.fullmatch(path):
            return self._send_listing(*match.groups(), fault)
        return self._send(404, b"")

    def _upload(self, path: str) -> tuple[int, dict[str, object]] | None:
        """Do one step of an upload and return the status and the content of the answer; None for another request."""
        hub = self.hub
        if path.startswith("/lfs/"):
            if hashlib.sha256(self.body).hexdigest() != path.removeprefix("/lfs/"):
                return 400, {"error": "checksum"}
            hub.stored[path.removeprefix("/lfs/")] = self.body
            return 200, {}
        if path == "/api/repos/create":
            return self._create(json.loads(self.body))
        if path == "/api/validate-yaml":
            license = re.search(r"^license: (.*)$", json.loads(self.body)["content"], re.MULTILINE)
            if license and not re.fullmatch(r"[a-z0-9.-]+", license[1]):
                return 400, {"errors": [{"message": '"license" must be one of a list'}], "warnings": []}
            return 200, {"errors": [], "warnings": []}
        if match := _PREUPLOAD.fullmatch(path):
            files = hub.newest(match[1])
            asked = [file["path"] for file in json.loads(self.body)["files"]]
            there = {name: describe(name, files[name]) for name in asked if name in files}
            oids = {name: about.get("lfs", about)["oid"] for name, about in there.items()}
            modes = {name: "lfs" if name.endswith(_LARGE) else "regular" for name in asked}
            listed = [{"path": name, "uploadMode": modes[name], "oid": oids.get(name)} for name in asked]
            return 200, {"files": [{**file, "shouldIgnore": False} for file in listed]}
        if _BATCH.fullmatch(path):
            objects = json.loads(self.body)["objects"]
            for missing in (asked for asked in objects if asked["oid"] not in hub.stored):
                missing["actions"] = {"upload": {"href": f"{hub.url}/lfs/{missing['oid']}"}}
            return 200, {"transfer": "basic", "objects": objects}
        if match := _COMMIT.fullmatch(path):
            return self._commit(match[1])
        return None

    def _create(self, asked: dict[str, str]) -> tuple[int, dict[str, object]]:
        name = f"{asked['organization']}/{asked['name']}"
        if ("models", name) in self.hub.main:
            return 409, {"error": "You already created this model repo"}
        self.hub.private |= {name} if asked.get("visibility") == "private" else set()
        self.hub.commit("models", name, {".gitattributes": b"*.safetensors filter=lfs\n"})
        return 200, {"url": f"{self.hub.url}/{name}"}

    def _commit(self, name: str) -> tuple[int, dict[str, object]]:
        lines = [json.loads(line) for line in self.body.splitlines()]
        files = dict(self.hub.newest(name))
        for line in lines:
            value = line["value"]
            if line["key"] == "header" and value.get("parentCommit") not in (None, self.hub.main["models", name]):
                return 412, {"error": "The branch has moved on"}
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = self.hub.commit("models", name, files)
        url = f"{self.hub.url}/{name}/commit/{commit}"
        return 200, {"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""}

    def _find(self, kind: str, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Find the commit of a revision and its files; where there is none, answer so."""
        if (kind, name) not in self.hub.main:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return None
        commit = self.hub.main[kind, name] if revision == "main" else revision
        if commit not in self.hub.commits[kind, name]:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
            return None
        return commit, self.hub.commits[kind, name][commit]

    def _send_listing(
        self, kind: str, name: str, what: str | None, revision: str | None, folder: str | None, fault: Fault
    ) -> None:
        found = self._find(kind, name, revision or "main")
        if found is None:
            return
        commit, files = found
        entries = [{"type": "file", "path": path, **describe(path, content)} for path, content in files.items()]
        if what in ("tree", "paths-info"):
            wanted = self.form.get("paths", []) if what == "paths-info" else None
            below = f"{folder}/" if folder else ""
            entries = [
                *({"type": "directory", "path": path, "oid": commit} for path in sorted(_folders(files))),
                *entries,
            ]
            if wanted is None:
                entries = [entry for entry in entries if str(entry["path"]).startswith(below)]
                if "recursive=true" not in self.path.lower():
                    entries = [entry for entry in entries if "/" not in str(entry["path"]).removeprefix(below)]
            else:
                entries = [entry for entry in entries if entry["path"] in wanted]
            return self._send(200, json.dumps(entries).encode(), {"Content-Type": "application/json"}, fault)
        siblings = []
        for entry in entries:
            sibling = {"rfilename": entry["path"], "size": entry["size"], "blobId": entry["oid"]}
            if lfs := entry.get("lfs"):
                sibling["lfs"] = {"sha256": lfs["oid"], "size": lfs["size"], "pointerSize": 134}
            siblings.append(sibling)
        info = {
            "id": name,
            "sha": commit,
            "siblings": siblings,
            "private": name in self.hub.private,
            "tags": [],
            "downloads": 0,
        }
        self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, fault)

    def _send_file(self, kind: str, name: str, revision: str, path: str, fault: Fault) -> None:
        found = self._find(kind, name, revision)
        if found is None:
            return
        commit, files = found
        if path not in files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        content, about = files[path], describe(path, files[path])
        etag = about["lfs"]["oid"] if "lfs" in about else about["oid"]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        status = 200
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, last = int(match[1]), int(match[2] or len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            content, status = content[first : last + 1], 206
        self._send(status, content, headers, fault)

    def _send(
        self, status: int, content: bytes, headers: dict[str, str] | None = None, fault: Fault | None = None
    ) -> None:
        fault = fault or Fault("")
        if fault.spoils and content:
            middle = len(content) // 2
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        self.send_response(status)
        for name, value in {"Date": formatdate(usegmt=True), **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: fault.cut_after])
        if fault.cut_after is not None:
            self.close_connection = True


def _folders(files: dict[str, bytes]) -> set[str]:
    parents = (str(parent) for path in files for parent in Path(path).parents)
    return {parent for parent in parents if parent != "."}


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Serve an empty hub on a free port of the loopback."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
