"""Every string that the operator shares with YAML, with pods and with people: names, labels, ports, mount paths.

Every module may import these; this one imports nothing. docs/reference.md lists them, and tests hold chart and CRD to them.
"""

from typing import Final

GROUP: Final = "paceline.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "SpeculativeModel"
PLURAL: Final = "speculativemodels"

# Fields applied under this name are the operator's; all others belong to whoever set them.
FIELD_MANAGER: Final = "paceline-operator"

LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "paceline-operator"
LABEL_NAME: Final = "app.kubernetes.io/name"
APP_NAME: Final = "paceline"
# These two are the Deployment's selector, which can never change: nothing with a version may join them.
LABEL_MODEL: Final = "paceline.dev/model"
LABEL_COMPONENT: Final = "paceline.dev/component"
COMPONENT_SERVER: Final = "server"
COMPONENT_INSPECT: Final = "inspect"
COMPONENT_CACHE: Final = "cache"
# Each child carries the hash of what was last applied: a field that is set no more is noticed without managedFields.
ANNOTATION_APPLIED: Final = "paceline.dev/applied-hash"
# A retained claim has no ownerReference; it carries the uid of its model here.
ANNOTATION_MODEL_UID: Final = "paceline.dev/model-uid"
# KEDA reads it on a ScaledObject, from 2.18 on, and does not copy these labels to the autoscaler that KEDA makes.
ANNOTATION_KEDA_EXCLUDED: Final = "scaledobject.keda.sh/hpa-excluded-labels"
# Prefix of what kopf may write on a resource.
ANNOTATION_PREFIX: Final = "paceline.dev"

PORT_HTTP: Final = 8000
PORT_HTTP_NAME: Final = "http"
PATH_LIVE: Final = "/livez"
PATH_READY: Final = "/readyz"
PATH_METRICS: Final = "/metrics"

CONTAINER_SERVER: Final = "server"
CONTAINER_INSPECT: Final = "inspect"
CONTAINER_FETCH: Final = "fetch"
TERMINATION_LOG: Final = "/dev/termination-log"
TERMINATION_LOG_BYTES: Final = 4096

# pvc:// sources are mounted at CLAIMS/<role>; fetched weights lie at WEIGHTS/<hash of the source>.
MOUNT_CLAIMS: Final = "/models/claims"
MOUNT_WEIGHTS: Final = "/models/weights"
VOLUME_WEIGHTS: Final = "weights"

ENV_API_KEY: Final = "PACELINE_API_KEY"
ENV_HUB_ENDPOINT: Final = "HF_ENDPOINT"
ENV_HUB_TOKEN: Final = "HF_TOKEN"
# Only the inspect Job has it: the Job reads both sources in one container.
ENV_DRAFT_HUB_TOKEN: Final = "PACELINE_DRAFT_HF_TOKEN"

POD_USER: Final = 10001

# Metrics of the serving pods, read into status.acceptance and scaled on.
METRIC_DRAFTED: Final = "paceline_spec_drafted_tokens_total"
METRIC_ACCEPTED: Final = "paceline_spec_accepted_tokens_total"
METRIC_STEPS: Final = "paceline_spec_steps_total"
METRIC_WAITING: Final = "paceline_requests_waiting"
METRIC_RUNNING: Final = "paceline_requests_running"

# Condition types, in the order in which they come true.
ACCEPTED: Final = "Accepted"
COMPATIBLE: Final = "Compatible"
WEIGHTS_CACHED: Final = "WeightsCached"
SCHEDULED: Final = "Scheduled"
AVAILABLE: Final = "Available"
PROGRESSING: Final = "Progressing"
ACCEPTANCE_HEALTHY: Final = "AcceptanceHealthy"
READY: Final = "Ready"
CONDITIONS: Final = (
    ACCEPTED,
    COMPATIBLE,
    WEIGHTS_CACHED,
    SCHEDULED,
    AVAILABLE,
    PROGRESSING,
    ACCEPTANCE_HEALTHY,
    READY,
)
