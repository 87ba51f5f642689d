"""The webhook's review of a resource, and the headers that the webhook may read for it."""
