"""The DFlash 2 draft and its proposer (`load.load_proposer`)."""
