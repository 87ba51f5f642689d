"""What kube-proxy, cluster DNS and an ingress would do: forwarders, a resolver, and the gate into the namespace."""
