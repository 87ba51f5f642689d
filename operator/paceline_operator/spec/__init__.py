"""What a SpeculativeModel says, as frozen values. This room knows nothing of children, clusters or checkpoints' contents."""
