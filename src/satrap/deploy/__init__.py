"""`satrap deploy`: what a cluster needs to run a recipe, and what watches runs.

For Kubernetes, `recipe` changes what differs in a pod, `sizes` says how much memory pods get, and `manifests`
makes the objects. `dashboard` and `alerts` are for Grafana and Prometheus.
"""

from satrap.deploy.alerts import alerts
from satrap.deploy.dashboard import dashboard
from satrap.deploy.helm import helm
from satrap.deploy.kubernetes import kubernetes
from satrap.deploy.request import Request

__all__ = ["Request", "alerts", "dashboard", "helm", "kubernetes"]
