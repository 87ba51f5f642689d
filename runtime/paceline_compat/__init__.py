"""Facts about checkpoints read from headers, the rules of compatibility, memory arithmetic. No torch, nothing of ours."""
