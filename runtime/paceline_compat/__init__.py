"""Facts about checkpoints from headers, the rules of compatibility, memory arithmetic. No torch, nothing of ours."""
