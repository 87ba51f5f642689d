"""What has to hold before pods are made: target and draft fit, and the weights are where the pods look for them."""
