"""An object store on loopback: listings, signatures, digests, and why it refuses."""

from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from fetch_runner import fetch_now, files_in
from fetch_servers import Answer, HubSite, S3Site, Site, serve

from paceline_runtime.fetch.sources.sigv4 import Credentials, SigV4Auth


@pytest.mark.parametrize("token", ["", "<NextContinuationToken>same</NextContinuationToken>"])
def test_a_listing_that_is_cut_off_is_refused(tmp_path: Path, token: str) -> None:
    """A store that speaks the first version of listings, or goes in circles: part of a model is none."""
    item = "<Contents><Key>m/config.json</Key><Size>2</Size></Contents>"
    page = f"<ListBucketResult><IsTruncated>true</IsTruncated>{token}{item}</ListBucketResult>".encode()
    with serve(S3Site("bucket", {"m/config.json": b"{}"})) as store:
        store.faults["/bucket"] = [Answer(200, page)] * 3
        result = fetch_now("s3://bucket/m", tmp_path, environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == 3
    assert "cut off" in result.error


@pytest.mark.parametrize("code", ["RequestTimeTooSkewed", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_an_object_store_says_why_it_refuses(tmp_path: Path, code: str) -> None:
    """Other credentials would not set the clock right."""
    with serve(Site()) as site:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>not for logs</Message></Error>".encode()
        site.faults["/bucket"] = [Answer(403, body)]
        result = fetch_now("s3://bucket/m", tmp_path, environment={"AWS_ENDPOINT_URL": site.url})

    assert result.code == 3
    assert f"answered 403 {code}: " in result.error
    assert "not for logs" not in result.error


def test_a_redirect_of_a_signed_request_is_refused(tmp_path: Path) -> None:
    """The session token would go along."""
    with serve(Site()) as site:
        site.faults["/bucket"] = [Answer(307, b"", {"Location": "http://localhost:1/b"})]
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"}
        result = fetch_now("s3://bucket/m", tmp_path, environment=keys | {"AWS_ENDPOINT_URL": site.url})

    assert result.code == 3
    assert "AWS_REGION" in result.error


CONFIG, WEIGHTS = b'{"model_type": "qwen3"}', bytes(range(256)) * 4096
MODEL = {
    "config.json": CONFIG,
    "tokenizer.json": b"{}",
    "added_tokens.json": b"",
    "chat_template.jinja": b"{{ messages }}",
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": WEIGHTS[::-1],
    "additional_chat_templates/tool use.jinja": b"{{ tools }}",
}
CLUTTER = {"README.md": b"hello", "original/consolidated.00.pth": b"pickle", "pytorch_model.bin": b"pickle"}


@pytest.mark.parametrize("session_token", [None, "session/token=="])
def test_s3_prefix_is_listed_page_by_page_and_every_request_signed(tmp_path: Path, session_token: str | None) -> None:
    """The fake store computes each signature anew, keys with spaces and signs among them."""
    credentials = Credentials("AKID", "secret/of+the=test", session_token)
    objects = {f"models/m/{name}": data for name, data in (MODEL | CLUTTER).items()}
    neighbour = {"models/m-other/config.json": b"not this"}
    with serve(S3Site("weights", objects | neighbour, credentials)) as store:
        environment = {
            "AWS_ENDPOINT_URL": store.url,
            "AWS_ACCESS_KEY_ID": credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
            "AWS_SESSION_TOKEN": session_token or "",
        }
        result = fetch_now("s3://weights/models/m", tmp_path, environment=environment)
        wrong = fetch_now("s3://weights/models/m", tmp_path / "w", environment=environment | {"AWS_SECRET_ACCESS_KEY": "x"})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == MODEL
    assert len([seen for seen in store.seen if "continuation-token" in seen.query]) >= 4
    assert wrong.code == 3
    assert credentials.secret_access_key not in result.out + wrong.out + wrong.error


def test_s3_public_bucket_and_single_object_need_no_keys(tmp_path: Path) -> None:
    """Without keys nothing is signed; a prefix that names an object is that object."""
    with serve(S3Site("public", {"a/model.gguf": WEIGHTS, "a/model.gguf.md": b"prose"})) as store:
        result = fetch_now("s3://public/a/model.gguf", tmp_path, environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == {"model.gguf": WEIGHTS}


def test_a_fetched_folder_that_was_uploaded_whole_can_be_fetched_again(tmp_path: Path) -> None:
    """`aws s3 sync` and `hf upload` take the bookkeeping along; it is no part of the model."""
    files = MODEL | {".paceline-fetch.json": b"{}", ".paceline-fetch.lock": b"", "x.gguf.0123456789ab.partial": b"x"}
    with serve(S3Site("public", {f"m/{name}": data for name, data in files.items()})) as store:
        from_store = fetch_now("s3://public/m", tmp_path / "s3", environment={"AWS_ENDPOINT_URL": store.url})
    with serve(HubSite("org/model", files)) as hub:
        from_hub = fetch_now("hf://org/model", tmp_path / "hf", environment={"HF_ENDPOINT": hub.url})

    assert (from_store.code, from_hub.code) == (0, 0), from_store.error + from_hub.error
    assert files_in(tmp_path / "s3") == files_in(tmp_path / "hf") == MODEL


@pytest.mark.parametrize("etag", [None, '"0123-2"'], ids=["md5", "of parts"])
def test_s3_listings_may_leave_the_quotes_of_etags_out(tmp_path: Path, etag: str | None) -> None:
    """The same tag in a header has them; it is no other version."""
    with serve(S3Site("public", {"a/model.gguf": WEIGHTS})) as store:
        store.lists_quotes = False
        store.etags |= {"/public/a/model.gguf": etag} if etag else {}
        result = fetch_now("s3://public/a", tmp_path, environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == 0, result.error


@pytest.mark.parametrize("namespace", ["", "xmlns='urn:fake:s3'", 'xmlns:x="urn:x" xmlns="urn:fake:s3"'])
def test_s3_listings_may_write_their_namespace_as_xml_permits(tmp_path: Path, namespace: str) -> None:
    """Google's store writes it in single quotes."""
    with serve(S3Site("public", {"a/config.json": CONFIG, "a/model.gguf": WEIGHTS})) as store:
        store.namespace = namespace
        result = fetch_now("s3://public/a", tmp_path, environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == {"config.json": CONFIG, "model.gguf": WEIGHTS}


@pytest.mark.parametrize(
    "names", [("AWS_ENDPOINT_URL_S3", "AWS_REGION"), ("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION")], ids=["preferred", "other"]
)
def test_s3_address_and_region_have_two_names_each(tmp_path: Path, names: tuple[str, str]) -> None:
    """As AWS's own tools read them: the operator's address stands back where a source's Secret has one."""
    credentials = Credentials("AKID", "secret")
    with serve(S3Site("weights", {"m/model.gguf": WEIGHTS}, credentials)) as store:
        store.region = "eu-central-7"
        other = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_DEFAULT_REGION": "elsewhere"}
        named = dict(zip(names, (store.url, store.region), strict=True))
        keys = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "secret"}
        result = fetch_now("s3://weights/m", tmp_path, environment={**other, **keys, **named})

    assert result.code == 0, result.error


def test_s3_objects_under_a_managed_key_are_verified_by_size_only(tmp_path: Path) -> None:
    """Their ETag looks like an MD5 and is none."""
    with serve(S3Site("kms", {"m/config.json": CONFIG, "m/model.gguf": WEIGHTS})) as store:
        store.etags = dict.fromkeys(store.files, f'"{"ab" * 16}"')
        store.extra_headers = {"x-amz-server-side-encryption": "aws:kms"}
        result = fetch_now("s3://kms/m", tmp_path, environment={"AWS_ENDPOINT_URL": store.url})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == {"config.json": CONFIG, "model.gguf": WEIGHTS}


# The worked examples of the S3 API reference, "Signature Calculations for the Authorization Header".
EXAMPLE = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")


@pytest.mark.parametrize(
    ("target", "headers", "signature"),
    [
        ("/test.txt", {"Range": "bytes=0-9"}, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        ("/?lifecycle", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("/?max-keys=2&prefix=J", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_signatures_equal_the_published_examples(target: str, headers: dict[str, str], signature: str) -> None:
    """Known answers, so that the fake store of the other tests may trust the same code."""
    auth = SigV4Auth(EXAMPLE, "us-east-1", now=lambda: datetime(2013, 5, 24, tzinfo=UTC))
    request = httpx.Request("GET", f"https://examplebucket.s3.amazonaws.com{target}", headers=headers)

    signed = next(auth.auth_flow(request))

    assert signed.headers["authorization"].endswith(f"Signature={signature}")


def test_credentials_do_not_show_in_reprs() -> None:
    """Tracebacks and debuggers print reprs."""
    credentials = Credentials("id", "the-secret", "the-session")

    assert "the-s" not in repr(SigV4Auth(credentials, "r"))
