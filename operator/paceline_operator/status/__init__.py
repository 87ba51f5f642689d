"""What `.status` says: conditions, counts, figures, and an Event for each condition that turned. Pure."""
