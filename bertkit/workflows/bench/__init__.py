"""Measure on this machine: the training of a recipe, or the ways to deploy a run."""

from bertkit.workflows.bench.deployment import Deployed, Deployment, deploy, write_page
from bertkit.workflows.bench.training import Bench, Speed, bench

__all__ = ["Bench", "Deployed", "Deployment", "Speed", "bench", "deploy", "write_page"]
