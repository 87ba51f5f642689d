"""The DFlash 2 draft and its proposer. The registry comes in through `load.load_proposer`."""
