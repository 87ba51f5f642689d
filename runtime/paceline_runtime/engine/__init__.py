"""The engine: plans a step, launches it on the device, collects its results. Public names only."""
