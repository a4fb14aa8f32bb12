"""The warm process of kill tests serves objectives too."""

from tests.workflows.conftest import zygote

__all__ = ["zygote"]
