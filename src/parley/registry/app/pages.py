"""The page of a registry for people, and its own entry for catalogs.

What is shown of entries was written by others: it is bounded and escaped, and no link leads there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from starlette.types import Scope

from parley.model.catalog.entries import REGISTRY, CatalogEntry
from parley.model.catalog.searching import (
    MAX_QUERY_TEXT,
    FederationMode,
    ListRequest,
    QueryModel,
    SearchRequest,
)
from parley.model.errors import InvalidParamsError
from parley.registry.app.operations import Operation, RestAnswer, RestRequest
from parley.registry.app.searching import SearchOperations
from parley.server.cards.catalog import CatalogItem
from parley.server.cards.catalog_entries import manifest_of

SHOWN = 20
MAX_SHOWN_TEXT = 400

_STYLE = """
:root { color-scheme: light dark; --ink: light-dark(#1c2127, #e3e7ec);
  --quiet: light-dark(#5a6470, #98a2ae); --paper: light-dark(#ffffff, #14171a);
  --panel: light-dark(#f6f7f9, #1b1f24); --line: light-dark(#dce1e7, #30373f);
  --link: light-dark(#0b57b7, #82b6ff); }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
.page { max-width: 52rem; margin: 0 auto; padding: 2rem 1.25rem 5rem; }
h1 { margin: 0 0 .5rem; font-size: 1.9rem; line-height: 1.2; }
h2 { margin: 0; font-size: 1.05rem; }
p, h1, h2, code { overflow-wrap: anywhere; }
p { margin: .3rem 0; }
a { color: var(--link); }
code { font-family: ui-monospace, Menlo, monospace; font-size: .86rem; }
.quiet { color: var(--quiet); font-size: .9rem; }
form { display: flex; gap: .5rem; margin: 1.25rem 0; }
input { flex: 1; min-width: 0; }
input, button { padding: .45rem .7rem; border: 1px solid var(--line); border-radius: 6px;
  background: var(--panel); color: inherit; font: inherit; }
ol { margin: 0; padding: 0; list-style: none; }
li { margin: .75rem 0; padding: .9rem 1rem; background: var(--panel); border: 1px solid var(--line);
  border-radius: 8px; }
"""


class RegistryPage:
    """The page at the root: what is listed, and a search."""

    def __init__(self, name: str, searching: SearchOperations) -> None:
        self._name = name
        self._searching = searching

    async def show(self, request: RestRequest) -> RestAnswer:
        """Answer ``GET /``."""
        words = request.query.get("q", "").strip()
        if len(words) > MAX_QUERY_TEXT:
            raise InvalidParamsError(f"q has at most {MAX_QUERY_TEXT} characters")
        if words:
            asked = SearchRequest(
                query=QueryModel(text=words), federation=FederationMode.NONE, page_size=SHOWN
            )
            found = await self._searching.found(asked, request.viewer, request.base)
            entries = found["results"]
            said = f"{len(entries)} for {words!r}, the best first" if entries else "nothing found"
        else:
            body = await self._searching.listed(ListRequest(page_size=SHOWN), request.viewer)
            entries = body["items"]
            total = body["total"]
            said = f"{total} entr{'y' if total == 1 else 'ies'}" if total else "no entries yet"
        page = _page(self._name, words, said, entries)
        return RestAnswer(body=page.encode(), media_type="text/html; charset=utf-8")

    @property
    def operation(self) -> Operation:
        """The row of the table."""
        return Operation(
            name="showPage",
            method="GET",
            path="/",
            handler=self.show,
            summary="The page for people",
            parameters={"q": {"type": "string", "maxLength": MAX_QUERY_TEXT}},
            is_documented=False,
        )


def _page(name: str, words: str, said: str, entries: Sequence[Mapping[str, Any]]) -> str:
    listed = "\n".join(_item(each) for each in entries)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(name)}</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body><div class="page">
<h1>{escape(name)}</h1>
<p class="quiet">A registry of agents: <a href="openapi.json">its interface</a>,
<a href="a2a/.well-known/agent-card.json">its agent</a>.</p>
<form method="get" role="search"><input name="q" aria-label="What do you need?"
placeholder="What do you need?" value="{escape(words)}" maxlength="{MAX_QUERY_TEXT}">
<button>Search</button></form>
<p class="quiet">{escape(said)}</p>
<ol>
{listed}
</ol>
</div></body></html>
"""


def _item(entry: Mapping[str, Any]) -> str:
    known = entry.get("registry", {})
    facts = [
        str(entry.get("type", "")),
        *(f"{known[each]}" for each in ("trust", "health") if each in known),
    ]
    if "score" in entry:
        facts.insert(0, f"score {entry['score']}")
    identifier = str(entry.get("identifier", ""))
    return (
        f"<li><h2>{_shown(entry.get('displayName'))}</h2>"
        f"<p>{_shown(entry.get('description'))}</p>"
        f'<p class="quiet">{_shown(" · ".join(facts))}</p>'
        f'<p><a href="agents/{escape(identifier)}"><code>{escape(identifier)}</code></a></p></li>'
    )


def _shown(text: Any) -> str:
    """Return a text of others, bounded and escaped."""
    given = text if isinstance(text, str) else ""
    line = "".join(char if char.isprintable() else " " for char in given)
    return escape(line if len(line) <= MAX_SHOWN_TEXT else f"{line[:MAX_SHOWN_TEXT]}…")


class RegistryItem(CatalogItem, frozen=True):
    """The entry of the registry itself, in its own catalog."""

    name: str = ""

    def entry(self, scope: Scope, publisher: str) -> CatalogEntry:
        """Return the entry, with the address that the caller can reach. Raises ``BadAddress``."""
        return CatalogEntry(
            identifier=self.identifier,
            display_name=self.name,
            type=REGISTRY,
            url=self.advertised.address(scope).rstrip("/") + "/",
            description="Finds agents by what they can do.",
            tags=("registry", "search", "discovery"),
            representative_queries=(
                "find me an agent that converts currencies",
                "which agents can book a flight?",
            ),
            trust_manifest=manifest_of(self.identifier, publisher),
            more={"mediaType": REGISTRY},
        )
