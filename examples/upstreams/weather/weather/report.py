"""Turns readings into lines that people read."""


def mean(values):
    return sum(values) / len(values)


def temperature(values):
    return f"{mean(values):.1f} degrees"


def report(readings):
    lines = [readings["place"]]
    lines.append("temperature: " + temperature(readings["temperature"]))
    return "\n".join(lines)
