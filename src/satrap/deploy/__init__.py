"""`satrap deploy`: from a recipe to the manifests of a run on Kubernetes.

`recipe` changes what differs in a pod, `sizes` says how much memory pods get, `manifests` makes the objects.
"""

from satrap.deploy.kubernetes import kubernetes
from satrap.deploy.request import Request

__all__ = ["Request", "kubernetes"]
