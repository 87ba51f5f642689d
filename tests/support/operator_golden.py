"""Models whose children are kept as golden files, and their writer: `python -c 'import operator_golden as g; g.write()'`."""

from pathlib import Path
from typing import Any

import yaml
from operator_builders import CONFIG, HUB_PAIR, make_resource

from paceline_operator.objects.deployment import Inherited
from paceline_operator.planning.desired import desired
from paceline_operator.spec.model import parse

FOLDER = Path(__file__).resolve().parents[1] / "operator" / "planning" / "golden"
KINDS = frozenset({"ScaledObject", "PodMonitor"})
CASES: dict[str, dict[str, Any]] = {
    "claim": {
        "target": {"uri": "pvc://models/smollm2"},
        "speculation": {"algorithm": "ngram", "numSteps": 3},
        "resources": {"gpu": {"count": 0}, "cpu": "500m", "memory": "2Gi"},
    },
    "cached-pair": {
        **HUB_PAIR,
        "cache": {"size": "80Gi", "storageClassName": "fast"},
        "auth": {"apiKeySecretRef": {"name": "keys"}},
        "autoscaling": {"maxReplicas": 4},
        "networkPolicy": {"enabled": True, "fromNamespaces": ["web"]},
        "metrics": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
        "scheduling": {
            "nodeSelector": {"gpu": "h200"},
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
                    }
                },
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "host", "labelSelector": {"matchLabels": {"paceline.dev/model": "demo"}}}
                    ]
                },
            },
            "spread": [{"topologyKey": "zone"}],
            "runtimeClassName": "nvidia",
            "schedulerName": "theirs",
        },
    },
    "fetched": {
        "target": {"uri": "s3://bucket/model", "secretRef": {"name": "s3-keys"}},
        "autoscaling": {"minReplicas": 1, "maxReplicas": 2, "keda": {"prometheusAddress": "http://prometheus:9090"}},
        "disruption": {"minAvailable": 1},
        "rollout": {"strategy": "Recreate"},
        "runtime": {"image": "mine:1", "args": ["--max-model-len", "4096"], "env": [{"name": "A", "value": "b"}]},
    },
}


def children(case: str) -> list[dict[str, Any]]:
    """Every child of a case, in the order of application."""
    model = parse(make_resource(CASES[case]))
    found = desired(model, CONFIG, Inherited(), KINDS)
    return [*found.inspection, *found.caching, *found.serving]


def path(case: str) -> Path:
    return FOLDER / f"{case}.yaml"


def write() -> None:
    """Bring the golden files up to date; read the difference before committing it."""
    for case in CASES:
        path(case).write_text(yaml.safe_dump_all(children(case), sort_keys=False))
