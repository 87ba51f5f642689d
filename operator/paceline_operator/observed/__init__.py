"""What the cluster has of one model, as values. A uid proves what belongs to it; labels do not."""
