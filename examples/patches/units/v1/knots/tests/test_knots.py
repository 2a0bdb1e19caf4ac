import pytest

PROBE = "probe_knots.py"


@pytest.mark.on
def test_a_knot_is_a_nautical_mile_an_hour(upstream):
    assert upstream.run(PROBE, "knots", need=["units"]) == 19.438


@pytest.mark.off
def test_other_units_are_as_before(upstream):
    assert upstream.run(PROBE, "kilometres_an_hour", need=["units"]) == 36
