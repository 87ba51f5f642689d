"""What all children have in common: metadata, ownership, hashes. Every builder of this room uses it.

Builders are pure: (Model, OperatorConfig) -> a server-side apply document with exactly the fields that the operator owns.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from paceline_operator.names import (
    ANNOTATION_APPLIED,
    ANNOTATION_MODEL_UID,
    API_VERSION,
    APP_NAME,
    KIND,
    LABEL_COMPONENT,
    LABEL_MANAGED_BY,
    LABEL_MODEL,
    LABEL_NAME,
    MANAGED_BY,
)
from paceline_operator.spec.model import Model

Object = dict[str, Any]


def labels(model: Model, component: str) -> dict[str, str]:
    """Labels of a child and of its pods. No version is among the labels, so an operator upgrade changes no template."""
    return {
        LABEL_NAME: APP_NAME,
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_MODEL: model.name,
        LABEL_COMPONENT: component,
    }


def owner_reference(model: Model) -> Object:
    """The reference by which the garbage collector deletes the child with the model. No finalizer is needed."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": model.name,
        "uid": model.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def child(model: Model, component: str, body: Object, *, name: str = "", owned: bool = True) -> Object:
    """A child with its metadata; `body` holds the rest (`apiVersion`, `kind`, `spec`, ...).

    The child has the model's name unless `name` is given. A child that outlives its model is not `owned`: an annotation of the
    child carries the model's uid.
    """
    metadata: Object = {
        "name": name or model.name,
        "namespace": model.namespace,
        "labels": labels(model, component),
        "annotations": {},
    }
    if owned:
        metadata["ownerReferences"] = [owner_reference(model)]
    else:
        metadata["annotations"] = {ANNOTATION_MODEL_UID: model.uid}
    return stamped({**body, "metadata": metadata})


def stamped(document: Object) -> Object:
    """The document with the hash of itself as annotation."""
    annotations = {k: v for k, v in document["metadata"].get("annotations", {}).items() if k != ANNOTATION_APPLIED}
    bare = {**document, "metadata": {**document["metadata"], "annotations": annotations}}
    text = json.dumps(bare, sort_keys=True, separators=(",", ":"))
    stamp = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {**bare, "metadata": {**bare["metadata"], "annotations": {**annotations, ANNOTATION_APPLIED: stamp}}}


def without_none(**fields: Any) -> Object:
    """The fields that were given. An apply document must not own a field that it does not set."""
    return {name: value for name, value in fields.items() if value not in (None, {}, (), [])}
