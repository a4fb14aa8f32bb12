"""Build a release in dist/, and test it on each installed version of Python.

    python tools/release.py                                       # a smoke test on each Python
    python tools/release.py --quick-suite all --python 3.12       # the complete quick suite, as `make test` runs it

The release is built from the commit HEAD. Sdist and wheel are built twice, with different folders, file times and
umask, and must be equal. The wheel is installed into a new environment, where the tests import it instead of the
sources. It needs the packages build, twine and cyclonedx-bom, and a package index.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SMOKE = (
    "cli/test_mistakes.py",
    "data",
    "recipe",
    "runtime",
    "storage",
    "tasks",
    "test_security.py",
    "training/test_fit.py",
)
RESULTS: list[tuple[str, str, float]] = []
"""Step, outcome, seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick-suite", choices=("all", "smoke"), default="smoke")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this version; can be repeated")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bertkit-release-") as folder:
        try:
            release(Path(folder), options.python or PYTHONS, options.quick_suite == "all")
        finally:
            width = max(len(name) for name, _, _ in RESULTS)
            lines = [f"{name:{width}}  {seconds:5.0f} s  {outcome}" for name, outcome, seconds in RESULTS]
            print("", *lines, sep="\n")


def release(folder: Path, versions: tuple[str, ...], is_full: bool) -> None:
    DIST.mkdir(exist_ok=True)
    sources = folder / "sources"
    with step("build twice") as notes:
        builds = build(sources, folder / "1"), build(folder / "elsewhere" / "again", folder / "2", umask=0o077)
        for first, second in zip(*builds, strict=True):
            if not filecmp.cmp(first, second, shallow=False):
                raise SystemExit(f"{first.name} differs between the two builds")
        sdist, wheel = (Path(shutil.copy(file, DIST)) for file in builds[0])
        notes.append(f"equal bytes: {sdist.name}, {wheel.name}")
    with step("twine check") as notes:
        call(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
        notes.append("passed, strict")
    with step("release notes") as notes:
        notes.append(write_notes(sources / "CHANGELOG.md", wheel.name.split("-")[1]))
    with step("sdist installs") as notes:
        notes.append(compare_installs(sdist, wheel, folder / "from-sdist"))
    pythons = {version: find_python(version) for version in versions}
    if not any(pythons.values()):
        raise SystemExit("the wheel was tested on no Python")
    bom: Path | None = DIST / "sbom.json"
    for version, python in pythons.items():
        if python is None:
            RESULTS.append((f"Python {version}", "NOT TESTED: not installed", 0))
        else:
            test_wheel(python, version, wheel, folder, is_full, bom)
            bom = None


def build(sources: Path, dist: Path, umask: int = 0o022) -> list[Path]:
    """Build sdist and wheel from HEAD; both have the time of the commit."""
    sources.mkdir(parents=True)
    archive = sources.with_suffix(".tar")
    call("git", "archive", "--output", archive, "HEAD")
    with tarfile.open(archive) as tar:
        tar.extractall(sources, filter="data")
    if umask != 0o022:
        for file in sources.rglob("*"):
            os.utime(file)
    environment = {
        "SOURCE_DATE_EPOCH": call("git", "log", "-1", "--format=%ct").strip(),
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),  # Another hatchling can write other files.
    }
    call(sys.executable, "-m", "build", "--outdir", dist, sources, environment=environment, umask=umask)
    return [next(dist.glob("*.tar.gz")), next(dist.glob("*.whl"))]


def write_notes(changelog: Path, version: str) -> str:
    """Write the first section of the changelog as release notes, and warn if it belongs to another version."""
    section = changelog.read_text(encoding="utf-8").split("\n## ")[1]
    title, _, text = section.partition("\n")
    file = DIST / f"notes-{version}.md"
    file.write_text(f"# bertkit {version}\n{text}\n", encoding="utf-8")
    warning = "" if title.startswith(f"[{version}]") else f", NOT VERSION {version}: see docs/releases.md"
    return f"{file.name} from the section {title}{warning}"


def compare_installs(sdist: Path, wheel: Path, target: Path) -> str:
    """Install the sdist without its dependencies, and compare its files with the wheel."""
    call(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", target, sdist)
    with ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if not name.endswith("RECORD")]
        differing = [name for name in files if (target / name).read_bytes() != archive.read(name)]
    if differing:
        raise SystemExit(f"{differing[0]} differs between the sdist and the wheel")
    return f"{len(files)} files, equal to the files of the wheel"


def find_python(version: str) -> str | None:
    """Return the program of a version of Python, on the path or installed by pyenv or uv, or None if it is missing."""
    homes = (Path.home() / ".pyenv/versions", Path.home() / ".local/share/uv/python")
    programs = sorted(
        (str(file) for home in homes for file in home.glob(f"*{version}*/bin/python{version}")), reverse=True
    )
    for program in filter(None, (shutil.which(f"python{version}"), *programs)):
        end = subprocess.run([program, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
        if end.returncode == 0:  # pyenv has scripts for versions that are not active.
            return end.stdout.strip()
    return None


def test_wheel(python: str, version: str, wheel: Path, folder: Path, is_full: bool, bom: Path | None) -> None:
    """Install the wheel into a new environment, list its packages, and run tests."""
    environment, sources = folder / f"python{version}", folder / "sources"
    program = environment / "bin" / "python"
    with step(f"Python {version}: install") as notes:
        call(python, "-m", "venv", environment)
        installer = (program, "-m", "pip", "install")
        if shutil.which("uv"):  # It copies no file that it has in its cache.
            installer = ("uv", "pip", "install", "--python", program)
        install = (*installer, "--quiet", "--constraint", ROOT / "constraints.txt")
        call(*install, wheel)
        place = call(program, "-P", "-c", "import bertkit; print(bertkit.__file__)", folder=folder).strip()
        if "site-packages" not in place:
            raise SystemExit(f"{place} was imported instead of the wheel")
        call(environment / "bin" / "bertkit", "finetune", "cola", "--model", "demo", "--data", "demo", folder=folder)
        notes.append("the wheel is in site-packages, and fine-tunes the demo model")
    if bom is not None:
        with step("SBOM") as notes:
            command = ("-m", "cyclonedx_py", "environment", "--output-reproducible", "-o", bom, program)
            call(sys.executable, *command, "--pyproject", sources / "pyproject.toml")
            count = len(json.loads(bom.read_text())["components"])
            notes.append(f"{bom.name}: {count} packages, on Python {version}")
    with step(f"Python {version}: {'quick suite' if is_full else 'smoke tests'}") as notes:
        call(*install, f"{wheel}[dev]")
        paths = ("tests", "--pyargs", "bertkit") if is_full else [f"tests/{path}" for path in SMOKE]
        # -P and append: installed packages come before the sources, which some tests read.
        run = (program, "-P", "-m", "pytest", "--import-mode=append", "-n", "2", "--dist", "worksteal", "-q", *paths)
        notes.append(re.findall(r"^.*\d+ passed.*$", call(*run, folder=sources), re.MULTILINE)[-1])
    shutil.rmtree(environment)


@contextmanager
def step(name: str) -> Iterator[list[str]]:
    """Print the outcome of a step, and keep it for the table; the block appends notes."""
    print(f"{name} ...", flush=True)
    notes, start = list[str](), time.monotonic()
    try:
        yield notes
    except BaseException as error:
        notes.insert(0, f"FAILED: {error}")
        raise
    finally:
        RESULTS.append((name, "; ".join(notes), time.monotonic() - start))
        print(f"{name}: {'; '.join(notes)}", flush=True)


def call(*command: object, folder: Path = ROOT, environment: dict[str, str] | None = None, umask: int = -1) -> str:
    """Run a program and return its output; exit with the output if it fails."""
    end = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        umask=umask,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if end.returncode:
        raise SystemExit(f"{Path(str(command[0])).name} exited with {end.returncode}:\n{end.stdout[-20_000:]}")
    return end.stdout


if __name__ == "__main__":
    main()
