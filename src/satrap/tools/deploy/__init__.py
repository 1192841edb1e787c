"""`satrap deploy`: manifests that run a recipe on a cluster, and monitoring of runs.

For Kubernetes, `recipe` adapts the recipe to pods, `sizes` computes the memory of pods, `manifests` makes the
training objects, and `serving` makes the serving objects. `ray_serve` is for Ray Serve; `dashboard` and
`alerts` are for Grafana and Prometheus.
"""

from satrap.tools.deploy.alerts import alerts
from satrap.tools.deploy.dashboard import dashboard
from satrap.tools.deploy.helm import helm
from satrap.tools.deploy.kubernetes import kubernetes
from satrap.tools.deploy.ray_serve import RayServing, ray_serve
from satrap.tools.deploy.request import DeployRequest
from satrap.tools.deploy.serving import kserve

__all__ = [
    "DeployRequest",
    "RayServing",
    "alerts",
    "dashboard",
    "helm",
    "kserve",
    "kubernetes",
    "ray_serve",
]
