"""What the attacks have tried, and what was wrong."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path


class Tally:
    """What was tried, by kind, and what was wrong.

    Whoever commits the figures says under `judged` what became of each failure.
    """

    def __init__(self, attack: str, seed: int) -> None:
        self.attack, self.seed, self.began = attack, seed, time.monotonic()
        self.tried: dict[str, Counter[str]] = {}
        self.wrong: list[dict[str, str]] = []
        self.names: set[str] = set()
        self.count = 0

    def add(self, number: int, name: str, kind: str, outcome: str, how: str = "", fault: str | None = None) -> None:
        """Count a trial by how it ended, and keep what was wrong with it."""
        self.tried.setdefault(kind, Counter())[outcome] += 1
        self.names.add(name)
        self.count += 1
        if fault:
            fault = fault.replace(sys.prefix, "VENV")
            again = f"python tools/attack.py {self.attack} --seed {self.seed} --trial {number}"
            entry = {"repeat": again, "name": name, "kind": kind, "how": how, "fault": fault, "judged": ""}
            self.wrong.append(entry)
            print(f"{again}\n    {name}, {kind} {how}: {fault}", flush=True)

    def sums(self) -> dict[str, dict[str, int]]:
        """Return how often trials of each kind ended in which way."""
        return {kind: dict(counts.most_common()) for kind, counts in sorted(self.tried.items())}

    def save(self, output: Path | None) -> None:
        """Write the sums beside what a file has of other attacks."""
        if output:
            content = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
            figures = {"seed": self.seed, "minutes": round((time.monotonic() - self.began) / 60), "tried": self.count}
            content[self.attack] = figures | {"names": len(self.names), "kinds": self.sums(), "wrong": self.wrong}
            output.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def write(self, output: Path | None) -> int:
        """Print the sums, write them, and return the exit code."""
        self.save(output)
        print(f"{self.count:,} tried, {len(self.wrong)} wrong: {self.sums()}")
        return 1 if self.wrong else 0
