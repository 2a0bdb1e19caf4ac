import pytest

PROBE = "probe_wind_report.py"
BEFORE = ["Harbour", "temperature: 9.0 degrees"]


@pytest.mark.on
def test_the_wind_is_reported(upstream):
    said = upstream.run(PROBE, need=["weather", "units"], env={"WEATHER_WIND": "1"})
    assert said == [*BEFORE, "wind: 20 knots, gusts 24"]


@pytest.mark.off
def test_without_its_switch_it_is_silent(upstream):
    assert upstream.run(PROBE, need=["weather", "units"]) == BEFORE
