"""What runs on the device: buffers by seat, the programs over them, how a plan gets in and results get out."""
