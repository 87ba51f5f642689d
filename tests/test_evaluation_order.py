"""No expression names a field and then calls what gives the object another one: `unpack(self._window, self._refill())`.

Python evaluates from left to right, so such a call works on what the field was before. One did: GGUF headers were misread.
"""

import ast
import itertools
from collections.abc import Iterator

import pytest
from source_tree import nodes

MISREADING = """
class Cursor:
    def number(self):
        return unpack(self._window, self._pass(8))

    def _pass(self, length):
        return self._ensure(length)

    def _ensure(self, length):
        self._window, self._start = self.source.read(self.position, length), self.position
"""
REFRESHED = MISREADING.replace("unpack(self._window, self._pass(8))", "unpack(self._pass(8), self._window)")
ANOTHER_FIELD = MISREADING.replace("unpack(self._window,", "unpack(self._layout,")


def own_fields(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """The attributes of `self` that the tree loads or stores."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, context))
    return {node.attr for node in found if isinstance(node.value, ast.Name) and node.value.id == "self"}


def stored_by(cls: ast.ClassDef) -> dict[str, set[str]]:
    """What each method of the class stores in `self`, by itself or by the methods that it calls."""
    methods = {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    stored = {name: own_fields(method, ast.Store) for name, method in methods.items()}
    called = {name: own_fields(method, ast.Load) & methods.keys() for name, method in methods.items()}
    for _ in methods:  # as many rounds as the longest chain of calls can have
        stored = {name: stored[name].union(*(stored[other] for other in called[name])) for name in methods}
    return stored


def stale_reads(cls: ast.ClassDef) -> Iterator[str]:
    """Expressions of the class with a part that loads a field before another part stores it."""
    stored = stored_by(cls)
    for node in ast.walk(cls):
        parts = ast.iter_child_nodes(node) if isinstance(node, ast.expr) else ()
        for earlier, later in itertools.combinations(parts, 2):
            changed = set().union(*(stored.get(name, ()) for name in own_fields(later, ast.Load)))
            if own_fields(earlier, ast.Load) & changed:
                yield f"{cls.name}: {ast.unparse(node)}"


@pytest.mark.parametrize(("text", "count"), [(MISREADING, 1), (REFRESHED, 0), (ANOTHER_FIELD, 0)])
def test_the_search_finds_what_was_misread_and_nothing_else(text, count):
    cls = ast.parse(text).body[0]
    assert isinstance(cls, ast.ClassDef)
    assert count == len(list(stale_reads(cls)))


def test_no_field_is_read_before_the_same_expression_changes_it():
    classes = [node for node in nodes() if isinstance(node, ast.ClassDef)]
    assert len(classes) > 300
    assert [] == [found for cls in classes for found in stale_reads(cls)]
