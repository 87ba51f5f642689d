"""Multi-token prediction: the head that a hybrid checkpoint brings along drafts for it. The registry calls `load`."""
