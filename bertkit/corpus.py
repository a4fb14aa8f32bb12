"""The names that `bertkit.pretraining.masking` and `.packing` had; they go with the next release."""

import sys
import warnings

from bertkit.pretraining import masking, packing

warnings.warn("bertkit.corpus is now bertkit.pretraining", FutureWarning, stacklevel=2)
sys.modules |= {f"{__name__}.masking": masking, f"{__name__}.packing": packing}
