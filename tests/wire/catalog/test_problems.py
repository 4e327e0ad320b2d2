"""Catalogs and responses of registries: reported problems, and tolerant parsing."""

from __future__ import annotations

import copy
import json
import subprocess
from contextlib import suppress
from typing import Any

import pytest
from conformance.ard import SCHEMA
from conformance.kits import ARD, NotAtHand, files_of
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from parley.registry.catalog.reading import InvalidCatalog, catalog_problems, problems_of
from parley.registry.catalog.searching import (
    InvalidAnswer,
    clamped,
    read_error,
    read_explore,
    read_list,
    read_one,
    read_search,
)

URN = "urn:air:example.com:agent:time"
JWS = "eyJhbGciOiJFUzI1NiJ9..c2lnbmF0dXJl"

GOOD = {
    "specVersion": "1.0",
    "host": {
        "displayName": "Example",
        "identifier": "did:web:example.com",
        "documentationUrl": "https://example.com/docs",
        "logoUrl": "https://example.com/logo.svg",
        "trustManifest": {"identity": "did:web:example.com"},
    },
    "entries": [
        {
            "identifier": URN,
            "displayName": "Time",
            "type": "application/a2a-agent-card+json",
            "url": "https://agents.example.com/.well-known/agent-card.json",
            "description": "Tells the time.",
            "tags": ["time"],
            "capabilities": ["tell"],
            "representativeQueries": ["What time is it?", "In Tokyo?"],
            "version": "1.0.0",
            "updatedAt": "2026-11-23T05:00:00Z",
            "metadata": {"region": "eu", "rank": 1, "beta": False, "note": None},
            "more": {"anything": ["goes"]},
            "trustManifest": {
                "identity": "https://example.com",
                "identityType": "https",
                "trustSchema": {
                    "identifier": "urn:trust:example",
                    "version": "1",
                    "governanceUri": "https://example.com/trust",
                    "verificationMethods": ["did"],
                },
                "attestations": [
                    {
                        "type": "SOC2-Type2",
                        "uri": "https://example.com/soc2.pdf",
                        "mediaType": "application/pdf",
                        "digest": "sha256:00",
                    }
                ],
                "provenance": [
                    {"relation": "publishedFrom", "sourceId": URN, "sourceDigest": "sha256:00"}
                ],
                "signature": JWS,
            },
        },
        {
            "identifier": "urn:air:example.com:catalog:more",
            "displayName": "More",
            "type": "application/ai-catalog+json",
            "data": {"specVersion": "1.0", "entries": []},
        },
    ],
}
GONE = "(missing)"

# The change to a valid catalog, and a part of the expected message.
WRONG = [
    (("entries",), GONE, "entries is missing"),
    (("entries",), {}, "a list of entries, not an object"),
    (("entries", 0), "x", "an entry must be a JSON object"),
    (("entries", 0, "identifier"), GONE, "identifier is missing"),
    (("entries", 0, "identifier"), "time", "not of the form urn:air:"),
    (("entries", 0, "identifier"), "urn:air:example.com", "not of the form urn:air:"),
    (("entries", 0, "identifier"), "urn:ai:example.com:agent:time", "not of the form"),
    (("entries", 0, "identifier"), "urn:air:example.com:a b:time", "letters, digits"),
    (("entries", 0, "identifier"), "urn:air:example.com:agent:", "letters, digits"),
    (("entries", 0, "identifier"), "URN:air:example.com:agent:time", "lower case"),
    (("entries", 0, "identifier"), ["x"], "a text, not a list"),
    (("entries", 0, "displayName"), GONE, "displayName is missing"),
    (("entries", 0, "displayName"), True, "not true"),
    (("entries", 0, "type"), GONE, "type is missing"),
    (("entries", 0, "type"), {}, "not an object"),
    (("entries", 0, "url"), GONE, "either a url or data; this entry has none"),
    (("entries", 0, "data"), {}, "either a url or data; this entry has both"),
    (("entries", 0, "url"), 7, "a text, not a number"),
    (("entries", 0, "description"), [], "a text"),
    (("entries", 0, "tags"), "time", "a list of texts"),
    (("entries", 0, "tags"), [1], "a list of texts"),
    (("entries", 0, "capabilities"), [None], "a list of texts"),
    (("entries", 0, "version"), 1.0, "a text"),
    (("entries", 0, "updatedAt"), 7, "a time such as"),
    (("entries", 0, "metadata"), [], "a JSON object"),
    (("entries", 0, "metadata", "nested"), {"a": 1}, "true, false or null"),
    (("entries", 0, "metadata", "nested"), [1], "true, false or null"),
    (("entries", 0, "trustManifest"), [], "a JSON object"),
    (("entries", 0, "trustManifest", "identity"), GONE, "identity is missing"),
    (("entries", 0, "trustManifest", "signature"), 1, "a text"),
    (("entries", 0, "trustManifest", "attestations"), {}, "a list of JSON objects"),
    (("entries", 0, "trustManifest", "attestations", 0), "x", "a JSON object"),
    (("entries", 0, "trustManifest", "attestations", 0, "uri"), GONE, "uri is missing"),
    (("entries", 0, "trustManifest", "provenance", 0, "sourceId"), GONE, "sourceId is missing"),
    (("entries", 0, "@context"), 1, "an address, an object or a list"),
    (("entries", 0, "@id"), 1, "a text"),
    (("entries", 1, "data"), [], "a JSON object"),
]
# Rules outside the schema that registries enforce.
REFUSED = [
    (("entries", 0, "identifier"), "urn:air:localhost:agent:time", "not a domain name"),
    (("entries", 0, "identifier"), "urn:air:127.0.0.1:agent:time", "not a domain name"),
    (("entries", 0, "displayName"), " ", "not empty"),
    (("entries", 0, "displayName"), "x" * 5_000, "at most 4096 characters"),
    (("entries", 0, "url"), "ftp://example.com/card.json", "not an https:// or http:// address"),
    (("entries", 0, "url"), "/card.json", "not an https:// or http:// address"),
    (("entries", 0, "updatedAt"), "yesterday", "a time such as"),
    (("entries", 0, "updatedAt"), "2026-13-01T00:00:00Z", "a time such as"),
    (("entries", 0, "trustManifest", "identity"), "https://evil.example", "not of the publisher's"),
    (("entries", 0, "trustManifest", "identity"), "did:web:evil.example", "not of the publisher's"),
    (("entries", 0, "trustManifest", "identity"), "https://notexample.com", "not of the publish"),
    (("entries", 0, "trustManifest", "identity"), "spiffe://x.org/a", "not of the publisher's"),
    (("entries", 0, "trustManifest", "identity"), "https://[", "not of the publisher's"),
    (("entries", 0, "trustManifest", "signature"), "abc", "a detached JWS"),
    (("entries", 0, "trustManifest", "signature"), "a.b.c", "a detached JWS"),
    (("entries", 1, "data", "entries"), GONE, "entries[1].data: entries is missing"),
]


def changed(path, value):
    made = copy.deepcopy(GOOD)
    inner = made
    for name in path[:-1]:
        inner = inner[name]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return made


def errors(document):
    return [str(each) for each in catalog_problems(document) if each.is_error]


@pytest.mark.parametrize(("path", "value", "words"), [*WRONG, *REFUSED], ids=str)
def test_each_error_is_told_with_its_reason(path, value, words):
    found = errors(changed(path, value))
    assert any(words in each for each in found), found


@pytest.fixture(scope="module")
def schema():
    try:
        files = files_of(ARD)
    except (NotAtHand, OSError, subprocess.SubprocessError) as error:
        pytest.skip(str(error))
    found = json.loads((files / SCHEMA).read_text("utf-8"))
    return Draft202012Validator({**found, "$ref": "#/$defs/ArdManifest"})


@pytest.mark.parametrize(("path", "value"), [(path, value) for path, value, _ in WRONG], ids=str)
def test_the_official_schema_refuses_it_too(schema, path, value):
    assert list(schema.iter_errors(changed(path, value))) != []


def test_the_official_schema_takes_what_is_taken_here(schema):
    assert list(schema.iter_errors(GOOD)) == []


@pytest.mark.parametrize(
    "identity",
    [
        "https://example.com",
        "https://agents.example.com/keys",
        "did:web:example.com",
        "did:web:agents.example.com:time",
        "did:web:example.com%3A8443",
        "spiffe://example.com/time",
        "dns:example.com",
        "example.com",
        URN,
    ],
)
def test_an_identity_is_of_the_publishers_domain(identity):
    made = changed(("entries", 0, "trustManifest", "identity"), identity)
    assert errors(made) == []


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("specVersion",), GONE, "specVersion is missing"),
        (("specVersion",), "2.0", 'it must be "1.0"'),
        (("specVersion",), 1, "a text, not a number"),
        (("collections",), [], "collections are not read"),
        (("host",), [], "host: a JSON object"),
        (("host", "displayName"), GONE, "displayName is missing"),
        (("host", "displayName"), 7, "not a number"),
        (("host", "identifier"), None, "a text, not null"),
        (("host", "trustManifest"), "x", "a JSON object"),
        (("host", "trustManifest", "identity"), GONE, "identity is missing"),
        (("entries", 0, "representativeQueries"), ["one"], "two to five, not 1"),
        (("entries", 0, "representativeQueries"), ["q"] * 6, "two to five, not 6"),
        (("entries", 0, "representativeQueries"), [], "two to five, not 0"),
        (("entries", 1, "data", "specVersion"), GONE, "entries[1].data: specVersion is missing"),
        (("entries", 0, "representativeQueries"), GONE, "easier to find"),
        (("entries", 0, "type"), "application/parquet", "not among the known types"),
        (("entries", 0, "mediaType"), "application/json", "mediaType differs"),
        (("entries",), [], "nothing is published"),
    ],
)
def test_a_warning_makes_no_catalog_invalid(path, value, words):
    made = changed(path, value)
    assert errors(made) == []
    assert any(words in str(each) for each in catalog_problems(made))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("entries", 0, "trustManifest", "identityType"), "dns"),
        (("entries", 0, "trustManifest", "owner"), "x"),
        (("entries", 0, "trustManifest", "trustSchema", "version"), GONE),
        (("entries", 0, "trustManifest", "attestations", 0, "mediaType"), GONE),
        (("entries", 0, "trustManifest", "provenance", 0, "relation"), "madeFrom"),
        (("host", "phone"), "1"),
        (("site",), "1"),
        (("entries", 0, "@context"), ["https://agenticresourcediscovery.org/context/v1"]),
    ],
)
def test_what_the_specification_leaves_open_is_nothing_wrong(schema, path, value):
    made = changed(path, value)
    assert catalog_problems(made) == catalog_problems(GOOD)
    assert list(schema.iter_errors(made)) == []


def test_an_identifier_is_there_once_in_each_version():
    made = copy.deepcopy(GOOD)
    made["entries"].append({**made["entries"][0], "version": "2.0.0"})
    assert errors(made) == []
    made["entries"].append(made["entries"][0])
    assert any("occurs twice in version 1.0.0" in each for each in errors(made))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a": NaN}', b'{"a": "\\ud800"}']
)
def test_what_is_no_json_is_no_catalog(body):
    with pytest.raises(InvalidCatalog):
        problems_of(body)


def test_what_is_no_object_is_no_catalog():
    assert errors([]) == ["a catalog must be a JSON object, not an empty list"]


def test_a_member_that_is_there_twice_is_an_error():
    body = json.dumps(GOOD)[:-1] + ', "entries": []}'
    assert any("'entries' occurs twice" in str(each) for each in problems_of(body.encode()))


# -- registry responses: tolerant parsing, and no content breaks the reader ------------------------


ENTRY = {
    "identifier": "urn:air:example.com:agent:a",
    "displayName": "A",
    "type": "application/a2a-agent-card+json",
    "url": "https://example.com/a.json",
}


def test_referrals_of_another_type_are_left_out_and_bounded() -> None:
    good = {**ENTRY, "type": "application/ai-registry"}
    given: list[Any] = [ENTRY, 7, {**good, "url": 7}, {"url": "https://b.example"}, *[good] * 99]
    read = read_search(json.dumps({"results": [], "referrals": given}).encode(), max_results=1)
    assert len(read.referrals) == 47
    assert read.referrals[0].type == "application/ai-registry+json"


def test_a_page_token_that_is_too_long_ends_the_pages() -> None:
    body = {"results": [], "pageToken": "x" * 5000}
    assert read_search(json.dumps(body).encode(), max_results=1).page_token == ""


@pytest.mark.parametrize("score", [None, "7", True, [], 1e400, float("-inf")])
def test_a_score_that_is_no_number_is_none(score: Any) -> None:
    body = json.dumps({"results": [{**ENTRY, "score": score}]}).encode()
    try:
        [result] = read_search(body, max_results=1).results
    except InvalidAnswer:
        return  # Python writes invalid JSON here
    assert result.score is None
    assert clamped(result.score) == 0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"errorCode": "A", "message": "b"}, ("A", "b")),
        ({"error": {"code": "A", "message": "b"}}, ("A", "b")),
        ({"error": "a", "error_description": "b"}, ("a", "b")),
        ({"detail": "b"}, ("", "b")),
        ([], ("", "")),
        (7, ("", "")),
    ],
)
def test_errors_are_read_in_the_forms_that_there_are(body: Any, expected: Any) -> None:
    assert read_error(json.dumps(body).encode()) == expected


MEMBERS = (
    "results", "items", "entry", "identifier", "displayName", "type", "url", "data", "score",
    "source", "referrals", "pageToken", "facets", "buckets", "value",
)  # fmt: skip

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=5)
    ),
    max_leaves=25,
)


@pytest.mark.slow
@given(JSON)
def test_whatever_is_answered_is_read_or_refused(value: Any) -> None:
    body = json.dumps(value).encode()
    for read in (
        lambda: read_search(body, max_results=5),
        lambda: read_list(body, max_items=5),
        lambda: read_explore(body),
        lambda: read_one(body),
    ):
        with suppress(InvalidAnswer):
            read()
    read_error(body)
