"""The name that `bertkit.pretraining.objectives` had; it goes with the next release."""

import sys
import warnings

from bertkit.pretraining import objectives

warnings.warn("bertkit.objectives is now bertkit.pretraining", FutureWarning, stacklevel=2)
sys.modules[__name__] = objectives
