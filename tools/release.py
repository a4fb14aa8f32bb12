"""Build a release into dist/, and show that it works on every Python that is here.

    python tools/release.py                                       # a smoke test on each Python
    python tools/release.py --quick-suite all --python 3.12       # the whole quick suite, as `make test` runs it

What is built is the commit HEAD. Sdist and wheel are built twice, in folders, with file times and with a umask of their
own, and must come out equal. The wheel is installed into a fresh environment, where the tests import it and not the
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
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this one; may be repeated")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bertkit-release-") as folder:
        try:
            release(Path(folder), options.python or PYTHONS, options.quick_suite == "all")
        finally:
            width = max(len(step) for step, _, _ in RESULTS)
            print(
                "\n" + "\n".join(f"{step:{width}}  {seconds:5.0f} s  {outcome}" for step, outcome, seconds in RESULTS)
            )


def release(folder: Path, versions: tuple[str, ...], is_whole: bool) -> None:
    DIST.mkdir(exist_ok=True)
    sources = folder / "sources"
    with step("build twice") as said:
        first, second = build(sources, folder / "1"), build(folder / "elsewhere" / "again", folder / "2", umask=0o077)
        for one, other in zip(first, second, strict=True):
            if not filecmp.cmp(one, other, shallow=False):
                raise SystemExit(f"{one.name} differs between the two builds")
        sdist, wheel = (Path(shutil.copy(file, DIST)) for file in first)
        said.append(f"equal bytes: {sdist.name}, {wheel.name}")
    with step("twine check") as said:
        call(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
        said.append("passed, strict")
    with step("release notes") as said:
        said.append(write_notes(sources / "CHANGELOG.md", wheel.name.split("-")[1]))
    with step("sdist installs") as said:
        said.append(compare_installs(sdist, wheel, folder / "from-sdist"))
    pythons = {version: find_python(version) for version in versions}
    bom: Path | None = DIST / "sbom.json"
    for version, python in pythons.items():
        if python is None:
            RESULTS.append((f"Python {version}", "NOT TESTED: it is not here", 0))
        else:
            test_wheel(python, version, wheel, folder, is_whole, bom)
            bom = None
    if bom:
        raise SystemExit("the wheel was tested on no Python")


def build(sources: Path, dist: Path, umask: int = 0o022) -> list[Path]:
    """Build sdist and wheel from HEAD in a folder of its own; both have the time of the commit."""
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
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),  # another hatchling could write another file
    }
    call(sys.executable, "-m", "build", "--outdir", dist, sources, environment=environment, umask=umask)
    return [next(dist.glob("*.tar.gz")), next(dist.glob("*.whl"))]


def write_notes(changelog: Path, version: str) -> str:
    """Write the first section of the changelog as the notes of a release; it should be that of the version."""
    sections = re.split(r"^## ", changelog.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    title, _, text = sections[0].partition("\n")
    file = DIST / f"notes-{version}.md"
    file.write_text(f"# bertkit {version}\n{text}", encoding="utf-8")
    warning = "" if title.startswith(f"[{version}]") else f", NOT THAT OF {version}: see docs/releases.md"
    return f"{file.name} from the section {title}{warning}"


def compare_installs(sdist: Path, wheel: Path, target: Path) -> str:
    """Install the sdist without its dependencies, and compare what is installed with the wheel."""
    call(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", target, sdist)
    with ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if not name.endswith("RECORD")]
        differing = [name for name in files if (target / name).read_bytes() != archive.read(name)]
    if differing:
        raise SystemExit(f"installed from the sdist, {differing[0]} is another file than in the wheel")
    return f"{len(files)} files, equal to those of the wheel"


def find_python(version: str) -> str | None:
    """Return the program of a version of Python: on the path, or installed by pyenv or uv."""
    homes = (Path.home() / ".pyenv/versions", Path.home() / ".local/share/uv/python")
    found = [file for home in homes for file in home.glob(f"*{version}*/bin/python{version}")]
    for program in filter(None, (shutil.which(f"python{version}"), *map(str, sorted(found, reverse=True)))):
        ended = subprocess.run([program, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
        if ended.returncode == 0:  # pyenv has a script for versions that are switched off
            return ended.stdout.strip()
    return None


def test_wheel(python: str, version: str, wheel: Path, folder: Path, is_whole: bool, bom: Path | None) -> None:
    """Install the wheel into a fresh environment, list what that holds, and run tests on it."""
    environment, sources = folder / f"python{version}", folder / "sources"
    program = environment / "bin" / "python"
    with step(f"Python {version}: install") as said:
        call(python, "-m", "venv", environment)
        installer = ("uv", "pip", "install", "--python", program)  # which copies nothing that it has already
        installer = installer if shutil.which("uv") else (program, "-m", "pip", "install")
        install = (*installer, "--quiet", "--constraint", ROOT / "constraints.txt")
        call(*install, wheel)
        place = call(program, "-P", "-c", "import bertkit; print(bertkit.__file__)", folder=folder).strip()
        if "site-packages" not in place:
            raise SystemExit(f"the wheel was not imported, but {place}")
        call(environment / "bin" / "bertkit", "finetune", "cola", "--model", "demo", "--data", "demo", folder=folder)
        said.append("the wheel alone is in site-packages, and fine-tunes the demo model")
    if bom is not None:
        with step("SBOM") as said:
            command = ("-m", "cyclonedx_py", "environment", "--output-reproducible", "-o", bom, program)
            call(sys.executable, *command, "--pyproject", sources / "pyproject.toml")
            count = len(json.loads(bom.read_text())["components"])
            said.append(f"{bom.name}: the {count} packages that the wheel needs, on Python {version}")
    with step(f"Python {version}: {'quick suite' if is_whole else 'smoke tests'}") as said:
        call(*install, f"{wheel}[dev]")
        paths = ("tests", "--pyargs", "bertkit") if is_whole else [f"tests/{path}" for path in SMOKE]
        # -P and append: what is installed comes before the sources, which some tests read
        run = (program, "-P", "-m", "pytest", "--import-mode=append", "-n", "2", "--dist", "worksteal", "-q", *paths)
        printed = call(*run, folder=sources)
        said.append(re.findall(r"^.*\d+ passed.*$", printed, re.MULTILINE)[-1])
    shutil.rmtree(environment)


@contextmanager
def step(name: str) -> Iterator[list[str]]:
    """Print how a step ended, and keep it for the table; whoever does it appends what it found."""
    print(f"{name} ...", flush=True)
    said, start = list[str](), time.monotonic()
    try:
        yield said
    except BaseException as error:
        said.insert(0, f"FAILED: {error}")
        raise
    finally:
        RESULTS.append((name, "; ".join(said), time.monotonic() - start))
        print(f"{name}: {'; '.join(said)}", flush=True)


def call(*command: object, folder: Path = ROOT, environment: dict[str, str] | None = None, umask: int = -1) -> str:
    """Run a program, and return what it prints; end with that where it fails."""
    ended = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        umask=umask,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ended.returncode:
        raise SystemExit(f"{Path(str(command[0])).name} ended with {ended.returncode}:\n{ended.stdout[-20_000:]}")
    return ended.stdout


if __name__ == "__main__":
    main()
