"""Damage files by the branches of bertkit that they reach (see attack_targets.py).

    pip install atheris    # into an environment of its own, beside bertkit
    python tools/attack_coverage.py --minutes 20 --folder corpus

Atheris runs libFuzzer, which keeps what reaches a branch that nothing before has reached, in `--folder`, and damages it
further. What a reader fails at is printed as rows of tests/test_attacks.yaml, and is no reason to stop.
"""

from __future__ import annotations

import argparse
import base64
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import atheris
import yaml

with atheris.instrument_imports(include=["bertkit"], enable_loader_override=False):
    from tools.attack_targets import Target, all_targets, try_target, warm_up

from tools.attack_tally import Tally


def describe(target: str, wrong: str, data: bytes) -> str:
    """Return a row of tests/test_attacks.yaml."""
    try:
        content = {"content": data.decode()}
    except UnicodeDecodeError:
        content = {"base64": base64.b64encode(data).decode()}
    return yaml.safe_dump([{"target": target, "was": wrong[:80], **content}], sort_keys=False, width=120)


def begin_with(place: Path, folder: Path, store: Path | None, words: list[str]) -> Iterator[tuple[str, Target]]:
    """Yield targets, and put a whole file of each into the folder; its first byte says which target reads it."""
    targets = sorted(all_targets(place / "kept", store).items())
    chosen = [entry for entry in targets if not words or any(word in entry[0] for word in words)]
    with atheris.instrument_imports(include=["bertkit"], enable_loader_override=False):
        for number, (name, target) in enumerate(chosen):
            (folder / f"seed-{name.replace('/', '-')}").write_bytes(bytes([number]) + target.content)
            warm_up(target, place)
            yield name, target


def main() -> None:
    """Fuzz all targets, or those whose names hold a word, for some minutes."""
    parser = argparse.ArgumentParser(description="Damage files by the branches that they reach.")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True, help="files that reach new branches")
    parser.add_argument("--store", type=Path, help="the folder `store` of a yard, for the files of runs")
    parser.add_argument("--output", type=Path, help="write what was tried and what was wrong to this .json file")
    parser.add_argument("words", nargs="*", help="in the names of targets")
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    place, tally = Path(tempfile.mkdtemp()), Tally("coverage", chosen.seed)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    targets = list(begin_with(place, chosen.folder, chosen.store, chosen.words))
    seen = set()

    def read(data: bytes) -> None:
        if not data:
            return
        name, target = targets[data[0] % len(targets)]
        outcome, wrong = try_target(target, data[1:], place)
        tally.add(0, name, "files", outcome)
        if tally.count % 500 == 0:
            tally.save(chosen.output)
        if wrong and (name, wrong[:40]) not in seen:
            seen.add((name, wrong[:40]))
            tally.wrong.append({"name": name, "kind": "files", "fault": wrong, "judged": ""})
            print(describe(name, wrong, data[1:]), flush=True)

    limits = [f"-max_total_time={60 * chosen.minutes:.0f}", f"-seed={chosen.seed}", "-max_len=20000", "-rss_limit_mb=0"]
    atheris.TaskContext([sys.argv[0], *limits, "-timeout=60", "-print_final_stats=1", str(chosen.folder)], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
