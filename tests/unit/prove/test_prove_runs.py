"""What `prove` says of a red test: its message in one line, with the error that ended a probe."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from patchctl.prove.runs import outcome_of, summary_of

OUTPUT = "probe_a.py (rank 0) ended with 1\n--- stdout\nstarted\n--- stderr\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    run()\n'


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("assert 1 == 2\n +  where 1 = f()", "assert 1 == 2"),
        (f"AssertionError: {OUTPUT}{TRACEBACK}ValueError: no group\n", "ended with 1: ValueError: no group"),
        (
            f"AssertionError: {OUTPUT}{TRACEBACK}KeyError: 'a'\n\nDuring handling\n\n{TRACEBACK}a.b.Wrong: two\nlines\n[W1] bye",
            "ended with 1: a.b.Wrong: two",
        ),
        (f'failed on setup with "AssertionError: {OUTPUT}Killed\n"', "ended with 1: Killed"),
        (f"AssertionError: {OUTPUT}", "ended with 1: started"),
        (
            "AssertionError: a.py (rank 1): the last line of stdout is no JSON\n--- stdout\nhm\n--- stderr\n",
            "no JSON: hm",
        ),
        ("AssertionError: a.py (rank 0) ended with -9\n--- stdout\n\n--- stderr\n", "ended with -9"),
    ],
)
def test_the_cause_is_told(message: str, said: str) -> None:
    assert summary_of(message).endswith(said)


def test_a_long_message_loses_its_end_and_not_the_cause() -> None:
    said = summary_of(f"AssertionError: {'x' * 500}/{OUTPUT}{TRACEBACK}ValueError: no group")
    assert len(said) < 300 and said.endswith("ValueError: no group")


@pytest.mark.parametrize(
    ("cause", "result"),
    [
        ("ValueError: no group", "failed"),
        ("OSError: [Errno 98] Address already in use", "error"),
        (
            "RuntimeError: The server socket has failed to listen: code: -98, name: EADDRINUSE, message: address already in use",
            "error",
        ),
        ("OSError: [Errno 28] No space left on device: '/tmp/a'", "error"),
        ("OSError: [Errno 2] No such file or directory: '/tmp/a'", "failed"),
    ],
)
def test_what_the_machine_ended_is_not_red(cause: str, result: str) -> None:
    case = ElementTree.Element("testcase", name="test_a")
    ElementTree.SubElement(case, "failure", message=f"AssertionError: {OUTPUT}{TRACEBACK}{cause}")
    assert outcome_of(case).result == result


def test_a_test_that_compares_such_an_error_is_red() -> None:
    case = ElementTree.Element("testcase", name="test_a")
    ElementTree.SubElement(case, "failure", message="AssertionError: assert None == 'EADDRINUSE'")
    assert outcome_of(case).result == "failed"
