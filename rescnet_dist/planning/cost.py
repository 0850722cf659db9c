"""Cost of a run in money, from prices of machines."""

from __future__ import annotations

from dataclasses import dataclass

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a machine for an hour, in any currency.

    Attributes
    ----------
    stable : float
        A machine that stays, for the scheduler and the driver, and for workers without `spot`.
    spot : float or None, default None
        A machine that may be taken away, for workers.
    """

    stable: float
    spot: float | None = None

    def run_cost(self, seconds: float, machines: int, *, spot: bool) -> float:
        """Return the cost of a run on so many machines, and one for scheduler and driver."""
        worker = self.stable if not spot or self.spot is None else self.spot
        return seconds / SECONDS_PER_HOUR * (machines * worker + self.stable)


def describe_cost(seconds: float, machines: int, prices: Prices) -> str:
    """Return the cost of a run with its workers on stable machines, and on spot machines if any.

    >>> describe_cost(7200, 1000, Prices(stable=0.4, spot=0.1))
    '801 with workers on stable machines, 201 on spot ones (1,000, and one for the scheduler)'
    """
    costs = f"{format_money(prices.run_cost(seconds, machines, spot=False))} with workers on stable"
    costs += " machines"
    if prices.spot is not None:
        costs += f", {format_money(prices.run_cost(seconds, machines, spot=True))} on spot ones"
    return f"{costs} ({machines:,}, and one for the scheduler)"


def format_money(amount: float) -> str:
    """Return an amount, with cents if it is small.

    >>> format_money(3.14159), format_money(31415.9)
    ('3.14', '31,416')
    """
    return f"{amount:.2f}" if amount < 100 else f"{amount:,.0f}"
