"""Write the pinned requirements of images, which `bertkit package --serve` copies.

    python3.13 tools/make_server_requirements.py

pip resolves `constraints.txt` for Linux on x86-64 and ARM. Run it with the Python version of the images, because the
files depend on it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "bertkit/server"
PACKAGES = (
    *("fastapi", "httptools", "prometheus-client", "uvicorn", "uvloop"),
    *("filelock", "jinja2", "numpy", "pydantic", "pyyaml", "rich", "tokenizers", "typer"),
)
BACKENDS = {"onnx": "onnxruntime", "openvino": "openvino"}
NOT_NEEDED = ("huggingface-hub", "openvino-telemetry")
"""Dependencies that serving an exported folder never imports."""


def main() -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    head = f"# Linux, Python {version}: written by tools/make_server_requirements.py, and checked by their hashes.\n"
    for backend, package in BACKENDS.items():
        hashes: dict[str, set[str]] = {}
        for platform in ("x86_64", "aarch64"):
            for pin, digest in resolve([*PACKAGES, package], platform, version):
                hashes.setdefault(pin, set()).add(f"--hash=sha256:{digest}")
        lines = [" \\\n    ".join([pin, *sorted(digests)]) for pin, digests in sorted(hashes.items())]
        (TARGET / f"requirements-{backend}.txt").write_text(head + "\n".join([*lines, ""]))


def resolve(packages: list[str], platform: str, version: str) -> list[tuple[str, str]]:
    """Return (name==version, sha256) of the files that pip would install, without packages that are never imported."""
    families = [*(f"manylinux_2_{glibc}" for glibc in range(36, 16, -1)), "manylinux2014"]  # Debian 12 and later
    tags = [f"--platform={family}_{platform}" for family in families]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--only-binary=:all:", "--report", str(report), "--target", folder, f"--python-version={version}"]
        subprocess.run([*command, *tags, "-c", str(ROOT / "constraints.txt"), *packages], check=True)
        items = {
            canonicalize_name(item["metadata"]["name"]): item for item in json.loads(report.read_text())["install"]
        }
    needed, waiting = dict[str, Any](), list(packages)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in items and name not in needed and name not in NOT_NEEDED:
            needed[name] = items[name]
            lines = items[name]["metadata"].get("requires_dist", ())
            waiting += [Requirement(line).name for line in lines if "extra ==" not in line]
    hashes = {name: item["download_info"]["archive_info"]["hashes"]["sha256"] for name, item in needed.items()}
    return [(f"{name}=={item['metadata']['version']}", hashes[name]) for name, item in needed.items()]


if __name__ == "__main__":
    main()
