"""Why a container does not run yet: the one exception that preparation raises, shown as the waiting state."""


class NotReadyError(Exception):
    """Something that a pod needs is not there (yet); `reason` is the kubelet's CamelCase word for it. Retried."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
