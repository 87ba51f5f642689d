"""Device-side caches: K/V pages and recurrent state. The bookkeeping of who owns what is in `scheduler`."""
