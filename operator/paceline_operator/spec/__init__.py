"""What a SpeculativeModel says, as frozen values. Knows nothing of children, of the cluster or of checkpoints."""
