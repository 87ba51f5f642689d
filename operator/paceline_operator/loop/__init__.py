"""The running operator: handlers fill a queue with models, workers reconcile them. This room owns every task and connection."""
