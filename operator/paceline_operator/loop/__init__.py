"""The running operator: handlers feed a queue, workers reconcile what is in it. Owns every task and connection."""
