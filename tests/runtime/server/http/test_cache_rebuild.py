"""The cache's endpoint: another size while idle, a reason otherwise, and nothing at all without an admin key."""

import httpx
import pytest
from live_server import MODEL, running

REBUILD = "/v1/cache/rebuild"


def test_an_idle_cache_is_rebuilt(admin):
    """With the new number of pages and the plan."""
    answer = admin.post(REBUILD, json={"num_pages": 12})

    assert 200 == answer.status_code
    assert {"num_pages": 12, "plan": ["a plan"]} == answer.json()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"num_pages": 0}, "num_pages must be at least 1"),
        ({"num_pages": 2**64}, "num_pages must be less than"),
        ({"pages": 3}, "pages"),
        ({"num_pages": 2000}, "too many pages"),
    ],
)
def test_sizes_that_cannot_be_are_refused(admin, body, words):
    """By the body's rules or by the engine, with 400 and the field's name."""
    answer = admin.post(REBUILD, json=body)

    assert 400 == answer.status_code
    assert words in answer.json()["error"]["message"]
    assert [answer.json()["error"]["param"]] == list(body)


def test_a_busy_cache_is_left_alone(admin, server):
    """While a request runs the answer is 409, and the request goes on."""
    body = {"model": "fake", "prompt": "linger", "max_tokens": 99, "stream": True}
    with admin.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()  # kept: letting go of it would close the stream
        next(lines)
        answer = admin.post(REBUILD, json={"num_pages": 12})

    assert 409 == answer.status_code
    assert "cache_busy" == answer.json()["error"]["code"]


def _statuses(path, keys, **options):
    """What each key gets from a server with these options, and how often the cache was rebuilt."""
    body = {"num_pages": 9} if path == REBUILD else {"model": MODEL, "prompt": "hi"}
    with running(**options) as server, httpx.Client(base_url=server.url) as http:
        answers = [http.post(path, json=body, headers={"authorization": f"Bearer {key}"}) for key in keys]
        return [answer.status_code for answer in answers], server.engine.num_rebuilds, answers


@pytest.mark.parametrize("api_keys", [(), ("client",)])
def test_administration_is_off_without_a_key_of_its_own(api_keys):
    """For everyone, holders of API keys too; the answer says how to turn it on."""
    statuses, num_rebuilds, answers = _statuses(REBUILD, ["client", "other"], api_keys=api_keys)
    error = answers[0].json()["error"]

    assert ([403, 403], 0) == (statuses, num_rebuilds)
    assert ("administration_off", "permission_error") == (error["code"], error["type"])
    assert all(name in error["message"] for name in ("--admin-key", "--admin-key-file", "PACELINE_ADMIN_KEY"))


@pytest.mark.parametrize("api_keys", [(), ("client",)])
def test_only_an_admin_key_administers(api_keys):
    """An API key does not, and an admin key is no API key."""
    keys, options = ["client", "chief", "chie"], dict(api_keys=api_keys, admin_keys=("chief", "deputy"))
    statuses, num_rebuilds, answers = _statuses(REBUILD, keys, **options)

    assert ([401, 200, 401], 1) == (statuses, num_rebuilds)
    assert "Bearer" == answers[0].headers["www-authenticate"]
    assert "invalid_api_key" == answers[0].json()["error"]["code"]
    assert ([200, 401, 401] if api_keys else [200] * 3) == _statuses("/v1/completions", keys, **options)[0]


def test_no_spelling_of_the_path_gets_around_the_key():
    """The route itself asks, whatever the middleware took the path for."""
    paths = [REBUILD + "/", "//v1/cache/rebuild", "/v1/cache%2Frebuild", "/v1/./cache/rebuild", "/V1/cache/rebuild"]
    with running(admin_keys=("chief",)) as server, httpx.Client(base_url=server.url, follow_redirects=True) as http:
        answers = [http.post(path, json={"num_pages": 9}) for path in paths]

    assert {401, 404} == {answer.status_code for answer in answers}
    assert 0 == server.engine.num_rebuilds
