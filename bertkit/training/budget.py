"""A budget of time: the learning rate follows the clock, not the steps (Geiping & Goldstein 2023, section 4.4)."""

from __future__ import annotations

import math
import time

from bertkit.recipe.pretraining import Pretraining


class Budget:
    """Seconds to train, some of which a resumed run has used; read once per step, so that a whole step agrees."""

    def __init__(self, seconds: float, training: Pretraining) -> None:
        self.seconds, self.training = seconds, training
        self.used_before, self.began = 0.0, time.perf_counter()
        self.share = 0.0

    def start(self, used: float) -> None:
        """Start the clock; `used` seconds have passed in earlier sessions."""
        self.used_before, self.began = used, time.perf_counter()
        self.read()

    @property
    def used(self) -> float:
        """The seconds used so far."""
        return self.used_before + time.perf_counter() - self.began

    @property
    def passed(self) -> float:
        """The share of the time that has passed by now, by this process's clock."""
        return min(1.0, self.used / self.seconds)

    @property
    def is_over(self) -> bool:
        """Whether the time was up when the clock was last read."""
        return self.share >= 1

    def read(self) -> None:
        """Read the clock; several processes agree on the latest one."""
        self.share = self.passed
        import torch
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            share = torch.tensor(self.share)
            distributed.all_reduce(share, distributed.ReduceOp.MAX)
            self.share = float(share)

    def rate(self) -> float:
        """Return the factor of the learning rate in the recipe's schedule at this share of the time."""
        warm = self.training.warmup_ratio
        schedule = self.training.schedule
        if schedule != "constant" and self.share < warm:
            return max(self.share, 1e-3) / warm
        rest = (self.share - warm) / (1 - warm)
        return {"linear": 1 - rest, "cosine": 0.5 * (1 + math.cos(math.pi * rest))}.get(schedule, 1.0)


def make_budget(training: Pretraining) -> Budget | None:
    """Build the budget of a recipe; None where it counts steps."""
    return None if training.budget_seconds is None else Budget(training.budget_seconds, training)
