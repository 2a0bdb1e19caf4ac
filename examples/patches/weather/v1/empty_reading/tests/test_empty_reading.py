import pytest

PROBE = "probe_empty_reading.py"


@pytest.mark.on
def test_a_broken_sensor_is_no_error(upstream):
    assert upstream.run(PROBE, "[]", need=["weather"]) == "not measured"


@pytest.mark.off
def test_a_reading_is_reported_as_before(upstream):
    assert upstream.run(PROBE, "[7.5, 9.0, 10.5]", need=["weather"]) == "9.0 degrees"
