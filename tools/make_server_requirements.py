"""Write the pinned requirements of images: `bertkit package --serve` copies them.

    python3.13 tools/make_server_requirements.py

It asks the package index for the files of `constraints.txt` that Linux on x86-64 and ARM installs. It needs pip, and
the Python of the images, whose version decides which files these are.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "bertkit/server"
WEB = ("fastapi", "httptools", "prometheus-client", "uvicorn", "uvloop")
DIRECT = (*WEB, "filelock", "jinja2", "numpy", "pydantic", "pyyaml", "rich", "tokenizers", "typer")
BACKENDS = {"onnx": "onnxruntime", "openvino": "openvino"}
PLATFORMS = ("x86_64", "aarch64")
NOT_NEEDED = ("huggingface-hub", "openvino-telemetry")
"""Dependencies of the others that serving an exported folder never imports."""


def main() -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    for backend, package in BACKENDS.items():
        lines: dict[str, set[str]] = {}
        for platform in PLATFORMS:
            for name, pinned in resolve([*DIRECT, package], platform, version).items():
                lines.setdefault(f"{name}=={pinned['version']}", set()).add(pinned["sha256"])
        head = (
            f"# Linux, Python {version}: written by tools/make_server_requirements.py, and checked by their hashes.\n"
        )
        text = "".join(
            " \\\n    ".join([line, *(f"--hash=sha256:{digest}" for digest in sorted(hashes))]) + "\n"
            for line, hashes in sorted(lines.items())
        )
        (TARGET / f"requirements-{backend}.txt").write_text(head + text)


def resolve(packages: list[str], platform: str, version: str) -> dict[str, dict[str, str]]:
    """Return the files that pip would install, without those that nothing imports: name -> version, sha256."""
    families = [*(f"manylinux_2_{glibc}" for glibc in range(36, 16, -1)), "manylinux2014"]  # of Debian 12 and later
    tags = [f"--platform={family}_{platform}" for family in families]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--only-binary=:all:", "--report", str(report), "--target", folder, f"--python-version={version}"]
        subprocess.run([*command, *tags, "-c", str(ROOT / "constraints.txt"), *packages], check=True)
        found = {named(item["metadata"]["name"]): item for item in json.loads(report.read_text())["install"]}
    needed, waiting = set[str](), list(packages)
    while waiting:
        name = waiting.pop()
        if name in found and name not in needed and name not in NOT_NEEDED:
            needed.add(name)
            waiting += [
                named(re.split(r"[^\w.-]", line)[0])
                for line in found[name]["metadata"].get("requires_dist", ())
                if "extra ==" not in line
            ]
    return {name: pin(found[name]) for name in needed}


def named(name: str) -> str:
    """Return the name of a package as indexes write it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pin(item: dict[str, Any]) -> dict[str, str]:
    return {
        "version": item["metadata"]["version"],
        "sha256": item["download_info"]["archive_info"]["hashes"]["sha256"],
    }


if __name__ == "__main__":
    main()
