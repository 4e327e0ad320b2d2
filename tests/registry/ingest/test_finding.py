"""Catalogs are found by robots.txt, links, the well-known address, and DNS."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parley.registry.ingest.addresses import DnsNames, is_same_site
from parley.registry.ingest.sites import links_of_header, links_of_page, read_robots
from parley.registry.records import SourceKind
from parley.security.egress import Egress
from tests.kit.certificates import Authority, trusting
from tests.registry.ingest.dns_server import dns_server
from tests.registry.ingest.sites import (
    CATALOG,
    HERE_ONLY,
    PREDECESSOR,
    entry,
    nested,
    old_card,
    reader,
    server_tls,
    site,
    urn,
)

pytestmark = pytest.mark.anyio


async def test_a_page_that_robots_may_not_read_is_not_read() -> None:
    async with site() as web, reader() as reads:
        web.pages["/robots.txt"] = b"User-agent: *\nDisallow: /\n"
        web.pages["/"] = b'<link rel="ai-catalog" href="/from-page.json">'
        web.serve(web.serve_card("known"))
        ended = await reads.visit(web.url, SourceKind.SITE)
    assert ended.entries == 1
    assert "/" not in web.asked
    # Restrictions in robots.txt address search engines; a catalog is meant for registries.
    assert CATALOG in web.asked


async def test_a_site_whose_robots_cannot_be_had_has_no_pages() -> None:
    async with site() as web, reader() as reads:
        web.pages["/robots.txt"] = 500
        web.pages["/"] = b'<link rel="ai-catalog" href="/from-page.json">'
        await reads.visit(web.url, SourceKind.SITE)
    assert "/" not in web.asked


async def test_a_page_below_the_root_lets_nobody_speak_for_the_domain() -> None:
    async with site() as web, reader() as reads:
        web.pages["/users/eve"] = b'<link rel="ai-catalog" href="/users/eve/agents.json">'
        web.serve(web.serve_card("eve"), path="/users/eve/agents.json")
        await reads.visit(f"{web.url}/users/eve", SourceKind.SITE)
        await reads.visit_all()
    assert reads.index.standing(urn("eve")) == "rejected"


async def test_dns_leads_to_the_catalog_of_a_domain_over_tls(tmp_path: Path) -> None:
    """End to end: records of a real server, resolvable names, certificates."""
    authority = Authority()
    tls = server_tls(authority, tmp_path, "acme.test", "agents.acme.test")
    async with dns_server() as dns, site(tls, "agents.acme.test") as web:
        port = web.url.rpartition(":")[2]
        for name in ("acme.test", "agents.acme.test"):
            dns.add(name, "A", "127.0.0.1")
        dns.add(
            "_index._agents.acme.test",
            "SVCB",
            f'1 agents.acme.test. mandatory="alpn,port" alpn="h2" port="{port}" '
            'key65400="https://ignored.acme.test/x.json" key65409="/not-well-known/catalog.json"',
        )
        names = DnsNames([dns.address])
        async with reader(
            names=names,
            tls=trusting(authority),
            egress=Egress().adding(["*.acme.test", "acme.test"]),
        ) as reads:
            agent = web.serve_card("one", publisher="acme.test")
            other = web.serve_card("two", publisher="example.com")
            web.serve(agent, other, path="/not-well-known/catalog.json")
            ended = await reads.visit("acme.test", SourceKind.SITE)
            await reads.visit_all()
    assert "SVCB _index._agents.acme.test" in ended.reason
    assert reads.index.listed == {urn("one", "acme.test")}
    assert reads.index.standing(urn("two", "example.com")) == "rejected"


async def test_a_site_that_publishes_as_ard_0_91_alone_is_read() -> None:
    """A well-known manifest without any 0.9 content, links with the new relation, and markup."""
    script = {
        "@context": ["https://agenticresourcediscovery.org/context/v1", {"x": "https://x.test/#"}],
        "@graph": [entry("marked", "/marked.json", **{"x:tier": "gold"})],
    }
    async with site() as web, reader() as reads:
        for name in ("well", "header", "link", "marked"):
            web.serve_card(name)
        web.pages[CATALOG] = {"entries": [entry("well", f"{web.url}/well.json")], "site": "mine"}
        web.pages["/h.json"] = {"entries": [entry("header", f"{web.url}/header.json")]}
        web.pages["/l.json"] = {"entries": [entry("link", f"{web.url}/link.json")]}
        web.pages["/"] = (
            b'<html><head><link rel="ard" href="/l.json"></head><body><h1>Agents</h1>'
            b'<!-- <script type="application/ld+json">{"identifier": "urn:air:evil"}</script> -->'
            b'<script type="application/ld+json">{"@type": "Organization"}</script>'
            b'<script type="application/ld+json">{</script>'
            b'<script type="application/ld+json">' + json.dumps(script).encode() + b"</script>"
        )
        web.headers["/"] = {"content-type": "text/html", "link": '</h.json>; rel="ard"'}
        ended = await reads.visit(web.url, SourceKind.SITE)
        assert "markup of the page" in ended.reason
        await reads.visit_all()
        assert reads.index.listed == {urn(name) for name in ("well", "header", "link", "marked")}
        marked = reads.index.one(urn("marked"))
        assert marked.fields["https://x.test/#tier"] == ("gold",)
        assert marked.url == f"{web.url}/marked.json"
        assert PREDECESSOR not in web.asked
        # Catalogs that the page no longer links are withdrawn.
        web.pages["/"] = b"<html>"
        await reads.visit(web.url, SourceKind.SITE)
        await reads.visit_all()
        assert reads.index.standing(urn("marked")) == "withdrawn"


async def test_a_site_that_moves_from_the_path_of_0_9_stays_listed() -> None:
    async with site() as web, reader(refresh_floor=0.001, refresh_default=0.001) as reads:
        agent = web.serve_card("one")
        old = web.serve(agent, path=PREDECESSOR)
        await reads.visit(web.url, SourceKind.SITE)
        await reads.visit_all()
        assert reads.index.listed == {urn("one")}
        new = web.serve(agent)
        await reads.visit(web.url, SourceKind.SITE)
        assert {old, new} <= set(reads.index.places)  # the new catalog is still unread
        await reads.visit_all()
        assert reads.index.places[new].entries == 1
        await reads.visit(web.url, SourceKind.SITE)
        assert old not in reads.index.places
        standings = {each.source: each.standing for each in reads.index.kept.values()}
        assert standings == {old: "withdrawn", new: "listed"}


async def test_dns_records_are_read_in_the_forms_that_others_write() -> None:
    async with dns_server() as dns:
        names = DnsNames([dns.address])
        index = "_index._agents"
        dns.add(f"{index}.a.test", "SVCB", "1 search.a.test.")
        dns.add(f"{index}.b.test", "SVCB", "0 c.test.")
        dns.add("c.test", "SVCB", '1 . port=8443 key65409="ai-catalog.json"')
        dns.add(f"{index}.d.test", "TXT", '"v=1 target=d.test ai-catalog=https://d.test/" "c.json"')
        dns.add("bot.e.test", "SVCB", "1 . key65400=https://e.test/bots/catalog.json")
        dns.add("f.test", "TXT", '"v=spf1 -all"', '"well-known=/f/catalog.json"')
        dns.add(f"{index}.g.test", "SVCB", "1 . key65409=agent-card.json")
        dns.add(f"{index}.h.test", "SVCB", "0 h2.test.")
        dns.add("h2.test", "SVCB", "0 h3.test.")
        dns.add("h3.test", "SVCB", "0 h2.test.")
        found = {
            host: [each.url for each in await names.catalogs(host)]
            for host in ("a.test", "b.test", "d.test", "bot.e.test", "f.test", "g.test", "h.test")
        }
        assert found == {
            "a.test": ["https://search.a.test/.well-known/ard.json"],
            "b.test": ["https://c.test:8443/.well-known/ai-catalog.json"],
            "d.test": ["https://d.test/c.json"],
            "bot.e.test": ["https://e.test/bots/catalog.json"],
            "f.test": ["https://f.test/f/catalog.json"],
            "g.test": [],  # a card is no catalog
            "h.test": [],  # aliases that point to each other
        }
        texts = await names.texts("f.test")
        assert sorted(texts) == ["v=spf1 -all", "well-known=/f/catalog.json"]


async def test_dns_that_leads_to_another_owner_lets_it_speak_for_nobody_else(
    tmp_path: Path,
) -> None:
    authority = Authority()
    tls = server_tls(authority, tmp_path, "evil.test")
    async with dns_server() as dns, site(tls, "evil.test") as web:
        dns.add("*", "A", "127.0.0.1")
        port = web.url.rpartition(":")[2]
        dns.add("_index._agents.acme.test", "SVCB", f"1 evil.test. port={port}")
        async with reader(
            names=DnsNames([dns.address]),
            tls=trusting(authority),
            egress=Egress().adding(["*.test"]),
        ) as reads:
            web.serve(
                web.serve_card("one", publisher="acme.test"),
                web.serve_card("two", publisher="evil.test"),
            )
            await reads.visit("acme.test", SourceKind.SITE)
            await reads.visit_all()
    assert reads.index.listed == {urn("two", "evil.test")}
    assert "its catalog belongs to evil.test" in reads.index.reason(urn("one", "acme.test"))


def test_name_servers_are_a_list() -> None:
    with pytest.raises(ValueError, match="must be a list"):
        DnsNames("127.0.0.1")
    DnsNames(["127.0.0.1", "127.0.0.1:5353", "::1", "[::1]:5353"])


ROBOTS = """
User-agent: other
User-agent: parley-registry/1.0
Disallow: /private
Allow: /private/catalogs/
Disallow: /*.secret$

User-agent: *
Disallow: /
agentmap: https://example.com/catalog.json  # the catalog
AGENTMAP: /relative.json
Sitemap: https://example.com/sitemap.xml
nonsense
"""


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/", True),
        ("/private/a", False),
        ("/private/catalogs/a.json", True),
        ("/a.secret", False),
        ("/a.secret/b", True),
        ("/%70rivate/a", False),
    ],
)
def test_the_longest_rule_for_our_name_counts(path: str, allowed: bool) -> None:
    robots = read_robots(ROBOTS.encode())
    assert robots.allows_page(f"https://example.com{path}") is allowed
    assert robots.allows_catalog(f"https://example.com{path}") is allowed


def test_link_headers_are_read_as_others_write_them() -> None:
    assert links_of_header('<https://a.test/c.json>; rel="ai-catalog"') == ["https://a.test/c.json"]
    assert links_of_header("</c>; type=x; rel=AI-Catalog, </d>; rel=next") == ["/c"]
    assert links_of_header('</c,d>; title="a;b, <e>"; rel="x ai-catalog"') == ["/c,d"]
    assert links_of_header('</c>; rel="ai-catalogs"') == []
    assert links_of_header("<" * 50_000) == []
    assert len(links_of_header('</c>; rel="ai-catalog", ' * 1000)) == 32


def test_links_of_a_page_stand_in_its_head() -> None:
    page = b'<!doctype html><html><HEAD><LINK href="/a" REL="Foo AI-catalog"/></HEAD><body>'
    assert links_of_page(page + b'<link rel=ai-catalog href="/comment-of-a-user">') == ["/a"]
    assert links_of_page(b"<link rel=ai-catalog>") == []
    assert links_of_page(b"<" * 100_000) == []
    assert links_of_page(b"<html><head><link rel='ai-catalog' href='/\xff'>") == ["/\ufffd"]


@pytest.mark.parametrize(
    "around",
    [
        "<!-- {} -->",
        "<script>write('{}')</script>",
        "<SCRIPT type=x>{}</Script >",
        "<style>{}</style>",
        "<title>{}</title>",
        "<noscript>{}</noscript>",
        "<body>{}</body>",
        "</head>{}",
        "<!-- never ends {}",
        "<linkage rel=ai-catalog href=/evil>",
    ],
)
def test_what_users_may_have_written_into_a_page_is_no_link(around: str) -> None:
    link = "<link rel=ai-catalog href=/evil>"
    assert links_of_page(b"<head>" + around.format(link).encode()) == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("acme.com", "acme.com", True),
        ("www.acme.com", "acme.com", True),
        ("a.acme.co.uk", "b.acme.co.uk", True),
        ("acme.co.uk", "evil.co.uk", False),
        ("alice.github.io", "bob.github.io", False),
        ("1.2.3.4", "9.9.3.4", False),
        ("localhost", "acme.com", False),
        ("", "acme.com", False),
    ],
)
def test_hosts_of_one_owner_are_one_site(one: str, other: str, same: bool) -> None:
    assert is_same_site(one, other) is same
    assert is_same_site(other, one) is same


async def test_what_an_operator_vouches_for_ends_at_its_site() -> None:
    """Nested catalogs of the same site are vouched for too; catalogs of other sites are not."""
    async with site() as web, site(host="elsewhere.test") as other, dns_server() as dns:
        dns.add("elsewhere.test", "A", "127.0.0.1")
        web.serve(
            entry("near", data=old_card("https://x.test"), publisher="acme.com"), path="/n.json"
        )
        other.serve(
            entry("far", data=old_card("https://x.test"), publisher="acme.com"), path="/f.json"
        )
        url = web.serve(nested("n", "/n.json"), nested("f", f"{other.url}/f.json"))
        async with reader(
            names=DnsNames([dns.address]),
            egress=HERE_ONLY.adding(["elsewhere.test"]),
            plain_http=("elsewhere.test",),
        ) as reads:
            await reads.add(url, settings={"authority": "operator"})
            assert await reads.visit_all() == 3
    assert reads.index.standing(urn("near", "acme.com")) == "listed"
    assert reads.index.standing(urn("far", "acme.com")) == "rejected"
