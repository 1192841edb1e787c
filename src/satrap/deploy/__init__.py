"""`satrap deploy`: what a cluster needs to run a recipe, and what watches runs.

For Kubernetes, `recipe` changes what differs in a pod, `sizes` says how much memory pods get, `manifests`
makes the objects that train, and `serving` those that answer requests. `ray_serve` is for Ray Serve,
`dashboard` and `alerts` are for Grafana and Prometheus.
"""

from satrap.deploy.alerts import alerts
from satrap.deploy.dashboard import dashboard
from satrap.deploy.helm import helm
from satrap.deploy.kubernetes import kubernetes
from satrap.deploy.ray_serve import RayServing, ray_serve
from satrap.deploy.request import Request
from satrap.deploy.serving import kserve

__all__ = [
    "RayServing",
    "Request",
    "alerts",
    "dashboard",
    "helm",
    "kserve",
    "kubernetes",
    "ray_serve",
]
