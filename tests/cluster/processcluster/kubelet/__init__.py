"""A small kubelet: runs the pods of one node as bubblewrap processes and tells the API server the truth about them.

What it cannot do it refuses by name (`support`), so that no field of a pod is silently ignored.
"""
