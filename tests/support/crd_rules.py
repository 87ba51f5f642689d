"""What the CRD says of a source, asked without an API server: its CEL rules and patterns, written over into Python.

Only the few functions that the rules of a source use are known; a rule with another one fails the test that asks.
`tests/cluster` asks a real API server about single examples, so the translation has its own witness.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import yaml
from source_tree import ROOT

CRD = ROOT / "crds" / "speculativemodels.paceline.dev.yaml"
_WORDS = [
    (r"self\.(\w+)\.startsWith\(", r"\1.startswith("),
    (r"self\.(\w+)\.contains\(", r"contains(\1, "),
    (r"self\.(\w+)\.matches\(", r"matches(\1, r"),
    (r"has\(self\.(\w+)\)", r"(\1 is not None)"),
    (r"&&", " and "),
    (r"\|\|", " or "),
    (r"!", " not "),
]


@dataclass(frozen=True)
class SourceRules:
    """The schema of `spec.target` or `spec.draft`."""

    schema: dict

    def refusals(self, uri: str, revision: str | None = None) -> list[str]:
        """Every message and pattern that an API server would refuse the source with; none for a good one."""
        found = [message for rule, message in self._rules if not rule(uri=uri, revision=revision, secretRef=None)]
        fields = self.schema["properties"]
        for name, value in (("uri", uri), ("revision", revision)):
            if value is not None and not fields[name]["minLength"] <= len(value) <= fields[name]["maxLength"]:
                found.append(f"{name}: length")
        if revision is not None and not matches(revision, fields["revision"]["pattern"]):
            found.append("revision: pattern")
        return found

    @cached_property
    def _rules(self) -> list[tuple[Callable[..., bool], str]]:
        return [(_predicate(entry["rule"]), entry["message"]) for entry in self.schema["x-kubernetes-validations"]]


def source_rules(role: str) -> SourceRules:
    """The rules of `target` or `draft` as the CRD has them now."""
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return SourceRules(schema["properties"]["spec"]["properties"][role])


def matches(text: str, pattern: str) -> bool:
    """RE2's search: `$` is the very end there, and classes have names."""
    pattern = pattern.replace("[:cntrl:]", r"\x00-\x1f\x7f").replace("[[]", r"\[").replace("[]]", r"\]")
    return re.search(re.sub(r"\$(?=$|\))", r"\\Z", pattern), text) is not None


def _predicate(rule: str) -> Callable[..., bool]:
    for cel, python in _WORDS:
        rule = re.sub(cel, python, rule)
    code = compile(f"bool({rule.strip()})", "rule", "eval")
    known = {"bool": bool, "matches": matches, "contains": lambda text, part: part in text}
    return lambda **values: eval(code, {"__builtins__": {}, **known}, values)
