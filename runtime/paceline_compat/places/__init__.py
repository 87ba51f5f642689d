"""Where a checkpoint lies, as text and as bytes that are read by ranges. Nothing here knows what a checkpoint holds."""
