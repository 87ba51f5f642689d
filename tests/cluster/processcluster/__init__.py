"""A Kubernetes cluster made of processes: real control plane, small process kubelet, no images, no root needed.

`Cluster.start(folder)` starts one and returns a handle; `python -m processcluster up` does the same for people.
Everything runs in one private user, network, process and mount namespace, so clusters do not meet each other and
nothing outlives the process that holds one.
"""

from processcluster.binaries import missing_pieces
from processcluster.cluster import Cluster, ClusterError
from processcluster.images import Image, checkout_images

__all__ = ["Cluster", "ClusterError", "Image", "checkout_images", "missing_pieces"]
