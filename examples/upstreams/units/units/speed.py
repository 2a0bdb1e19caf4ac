"""Speeds. Everything is metres a second inside."""

KILOMETRES_AN_HOUR = 3.6


def kilometres_an_hour(speed):
    return speed * KILOMETRES_AN_HOUR
