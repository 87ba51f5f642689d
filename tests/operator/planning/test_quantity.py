"""Quantities as numbers: two writings of one are the same."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.planning.quantity import parse_quantity, same_quantity


@pytest.mark.parametrize(
    "text, number",
    [("1", 1), ("500m", Decimal("0.5")), ("2Gi", 2 << 30), ("1.5k", 1500), ("", None), ("x", None), ("1Q", None)],
)
def test_quantities_are_numbers(text, number):
    """Decimal and binary units; other text is no quantity."""
    assert parse_quantity(text) == number


@given(st.integers(0, 10**6))
def test_two_writings_of_one_quantity_are_the_same(number):
    """The server's rewriting is no edit."""
    assert same_quantity(str(number), f"{number * 1000}m")
    assert same_quantity(f"{number}Gi", f"{number * 1024}Mi")
    assert not same_quantity(f"{number}Gi", f"{number}G") or number == 0


@pytest.mark.parametrize(
    "asked, kept, other",
    [("0.0001", "1m", "2m"), ("1.23456789Gi", "1325607178061m", "1325607178060m"), ("2.0004", "2001m", "2")],
)
def test_the_servers_rounding_is_no_edit(asked, kept, other):
    """It keeps thousandths, rounded up; else such a Deployment would be applied at every look."""
    assert same_quantity(kept, asked)
    assert not same_quantity(other, asked)
