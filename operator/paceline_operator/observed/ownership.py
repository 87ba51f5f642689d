"""Whose an object is. Labels select what the operator looks at; a uid proves that an object is a model's own.

`observed` asks what counts, and `reconcile` asks before it applies a child over an object of the child's name. Pure. Others
copy labels and annotations: KEDA copies a ScaledObject's to the autoscaler that KEDA makes, a backup copies all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from paceline_operator.names import ANNOTATION_MODEL_UID, KIND

Object = dict[str, Any]


def has_owner(found: Object, uids: Collection[str]) -> bool:
    """Whether an ownerReference carries one of these uids."""
    return any(one["uid"] in uids for one in found["metadata"].get("ownerReferences") or ())


def retained_for(found: Object) -> str:
    """The uid of the model that a claim was retained for: such a claim has no owner. Empty for everything else."""
    metadata = found["metadata"]
    if found["kind"] != "PersistentVolumeClaim" or metadata.get("ownerReferences"):
        return ""
    return str((metadata.get("annotations") or {}).get(ANNOTATION_MODEL_UID, ""))


def is_child(found: Object, uid: str) -> bool:
    """Whether an object is a child of the model with this uid."""
    return has_owner(found, {uid}) or retained_for(found) == uid


def why_not_ours(found: Object, document: Object, uid: str) -> str:
    """Why `document`, a child of the model with this uid, must not be applied over `found`; empty when it may.

    A model that retains its claim takes over the claim that an earlier model of the same name retained. A claim's name holds
    its model's name, so no other model can have retained that claim.
    """
    if is_child(found, uid):
        return ""
    if retained_for(found):
        remedy = "set spec.cache.retain to take it over, or delete it"
        return "" if retained_for(document) else f"was retained by an earlier SpeculativeModel: {remedy}"
    for owner in found["metadata"].get("ownerReferences") or ():
        if owner["kind"] == KIND:
            return f"belongs to {KIND} {owner['name']} with uid {owner['uid']}: it goes with that one, or has to be deleted"
    remedy = "delete or rename either one"
    if retained_for(document):
        remedy += f", or hand it over by the annotation {ANNOTATION_MODEL_UID}: {uid}"
    return f"exists and was not made for this SpeculativeModel: {remedy}"
