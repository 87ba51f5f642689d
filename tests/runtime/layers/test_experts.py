"""The mixture of experts: rows that are not active reach no expert, and no row depends on its neighbours."""

import torch

from paceline_runtime.layers.experts import Experts
from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.mlp import GatedMlp
from paceline_runtime.layers.weights.dense import DenseStack, DenseWeight

HIDDEN, INNER, EXPERTS, CHOSEN = 16, 8, 6, 2


def linear(*shape):
    return Linear(DenseWeight(torch.randn(shape, dtype=torch.float64)))


def mixture():
    shapes = (2 * INNER, HIDDEN), (HIDDEN, INNER)
    weights = (DenseStack(torch.randn(EXPERTS, *shape, dtype=torch.float64)) for shape in shapes)
    shared = GatedMlp(linear(2 * INNER, HIDDEN), linear(HIDDEN, INNER))
    return Experts(linear(EXPERTS, HIDDEN), *weights, shared, linear(1, HIDDEN), num_chosen=CHOSEN)


def by_definition(layer, x):
    """One row: the sum over its likeliest experts, their probabilities scaled to 1, and the gated shared expert."""
    probabilities = layer.router(x).softmax(-1)
    best = probabilities.argsort(descending=True)[:CHOSEN]
    out = layer.shared_gate(x).sigmoid() * layer.shared(x)
    for expert in best:
        gate, up = layer.gate_up.take(expert).matmul(x).chunk(2)
        own = layer.down.take(expert).matmul(torch.nn.functional.silu(gate) * up)
        out = out + probabilities[expert] / probabilities[best].sum() * own
    return out


def test_each_row_is_its_own_sum_over_experts():
    layer, x = mixture(), torch.randn(9, HIDDEN, dtype=torch.float64)
    out = layer(x, torch.ones(9, dtype=torch.bool))
    torch.testing.assert_close(out, torch.stack([by_definition(layer, row) for row in x]))


def test_inactive_rows_reach_no_expert_and_change_no_other_row(monkeypatch):
    counted = []

    def counting(stack, x, ends):
        counted.append(int(ends[-1]))
        return matmul(stack, x, ends)

    matmul = DenseStack.matmul
    monkeypatch.setattr(DenseStack, "matmul", counting)
    layer, x = mixture(), torch.randn(9, HIDDEN, dtype=torch.float64)
    active = torch.tensor([True, False, True, True, False, False, True, True, False])
    x[~active] = torch.nan
    out = layer(x, active)
    assert [5 * CHOSEN] * 2 == counted
    torch.testing.assert_close(out[active], torch.stack([by_definition(layer, row) for row in x[active]]))


def test_without_an_active_row_no_expert_works():
    layer, x = mixture(), torch.randn(3, HIDDEN, dtype=torch.float64)
    out = layer(x, torch.zeros(3, dtype=torch.bool))
    torch.testing.assert_close(out, layer.shared_gate(x).sigmoid() * layer.shared(x))
