"""What runs on the device: buffers by seat, the programs over them, and the way of a plan in and of results out."""
