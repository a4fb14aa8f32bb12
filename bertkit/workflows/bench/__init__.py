"""Measure on this machine: the training of a recipe, or the ways to deploy a run."""

from bertkit.workflows.bench.deployment import Deployed as Deployed
from bertkit.workflows.bench.deployment import Deployment as Deployment
from bertkit.workflows.bench.deployment import deploy as deploy
from bertkit.workflows.bench.training import Bench as Bench
from bertkit.workflows.bench.training import Speed as Speed
from bertkit.workflows.bench.training import bench as bench
