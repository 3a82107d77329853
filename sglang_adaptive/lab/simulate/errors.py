"""What can go wrong in a simulation."""

from __future__ import annotations


class SimulationError(ValueError):
    """Bad input to the simulator, or a policy that broke its contract; the message is one line."""
