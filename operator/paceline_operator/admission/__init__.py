"""The webhook's review of a resource, with the little that it may look up itself."""
