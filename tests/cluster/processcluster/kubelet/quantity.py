"""Kubernetes quantities, as far as `resourceFieldRef` and tmpfs sizes need them."""

from decimal import ROUND_CEILING, Decimal

SUFFIXES = {
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "m": Decimal("0.001"),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
}


def parse_quantity(text: str) -> Decimal:
    """The value in base units (bytes, cores). Raises decimal.InvalidOperation for what is no quantity."""
    for suffix, factor in SUFFIXES.items():
        if text.endswith(suffix):
            return Decimal(text.removesuffix(suffix)) * factor
    return Decimal(text)


def divided(value: str, divisor: str) -> str:
    """`value / divisor` rounded up, as resourceFieldRef presents it. A divisor of 0 means 1."""
    by = parse_quantity(divisor) or Decimal(1)
    return str(int((parse_quantity(value) / by).to_integral_value(ROUND_CEILING)))
