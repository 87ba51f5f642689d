"""The cache's endpoint: another size while idle, a reason otherwise, and the same text from the real engine afterwards."""

import pytest


def test_an_idle_cache_is_rebuilt(http):
    """With the new number of pages and the plan."""
    answer = http.post("/v1/cache/rebuild", json={"num_pages": 12})

    assert 200 == answer.status_code
    assert {"num_pages": 12, "plan": ["a plan"]} == answer.json()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"num_pages": 0}, "greater than or equal to 1"),
        ({"num_pages": 2**64}, "less than"),
        ({"pages": 3}, "pages"),
        ({"num_pages": 2000}, "too many pages"),
    ],
)
def test_sizes_that_cannot_be_are_refused(http, body, words):
    """By the body's rules or by the engine, with 400."""
    answer = http.post("/v1/cache/rebuild", json=body)

    assert 400 == answer.status_code
    assert words in answer.json()["error"]["message"]


def test_a_busy_cache_is_left_alone(http, server):
    """While a request runs the answer is 409, and the request goes on."""
    body = {"model": "fake", "prompt": "linger", "max_tokens": 99, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()  # kept: letting go of it would close the stream
        next(lines)
        answer = http.post("/v1/cache/rebuild", json={"num_pages": 12})

    assert 409 == answer.status_code
    assert "cache_busy" == answer.json()["error"]["code"]
