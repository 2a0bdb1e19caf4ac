"""The report's line about the wind. Carried by a patch: upstream has no such module."""

from units.speed import knots


def wind(speeds):
    """Mean and strongest of speeds in metres a second, in knots."""
    mean = sum(speeds) / len(speeds)
    return f"{knots(mean):.0f} knots, gusts {knots(max(speeds)):.0f}"
