"""The Kubernetes operator: reconciles SpeculativeModel resources. Knows nothing of torch or of the runtime's code."""
