"""Links to catalogs: ``Link`` headers (RFC 8288), and ``<link>`` in the head of a page."""

from __future__ import annotations

import re
from html import unescape

RELATION = "ai-catalog"
MAX_LINKS = 32
_MAX_HEADER = 16 * 1024

_LINK = re.compile(r"<([^<>]{1,2048})>((?:\s*;\s*[^;,\"]+(?:\"[^\"]*\")?)*)")
_PARAMETER = re.compile(r";\s*([!#$&+\-^_`|~\w]+)\s*=\s*(?:\"([^\"]*)\"|([^\s;,\"]+))")

_MARK = re.compile(
    r"<!--|<(?:link|script|style|title|template|noscript|textarea|body)(?=[\s/>])|</head(?=[\s>])",
    re.IGNORECASE,
)
_ENDS = ("<body", "</head")
_TAG = re.compile(r"(?:[^<>\"']|\"[^\"<>]{0,2048}\"|'[^'<>]{0,2048}'){0,512}>")
_ATTRIBUTE = re.compile(r"([^\s=\"'<>/]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+))")


def links_of_header(value: str) -> list[str]:
    """Return the addresses of catalogs in a ``Link`` header, as they are written."""
    found = []
    for match in _LINK.finditer(value[:_MAX_HEADER]):
        relations = ""
        for name, quoted, bare in _PARAMETER.findall(match[2]):
            if name.lower() == "rel":
                relations = relations or quoted or bare
        if RELATION in relations.lower().split():
            found.append(match[1].strip())
    return found[:MAX_LINKS]


def links_of_page(body: bytes) -> list[str]:
    """Return the addresses of catalogs in the head of a page, as they are written.

    What stands in comments, scripts and titles is text, and what comes after the head is not read:
    the users of a site may have written it. It takes time in proportion to the page.
    """
    text = body.decode("utf-8", "replace")
    found: list[str] = []
    at = 0
    while (match := _MARK.search(text, at)) and len(found) < MAX_LINKS:
        mark, at = match[0].lower(), match.end()
        if mark in _ENDS:
            break
        if mark == "<link":
            if (tag := _TAG.match(text, at)) is None:
                continue
            named = _attributes(tag[0])
            if RELATION in named.get("rel", "").lower().split() and named.get("href", "").strip():
                found.append(unescape(named["href"]).strip())
            continue
        end = "-->" if mark == "<!--" else f"</{mark[1:]}"
        close = re.compile(re.escape(end), re.IGNORECASE).search(text, at)
        if close is None:
            break
        at = close.end()
    return found


def _attributes(text: str) -> dict[str, str]:
    """Return the attributes of a tag; the first of each name counts."""
    found: dict[str, str] = {}
    for name, double, single, bare in _ATTRIBUTE.findall(text):
        found.setdefault(name.lower(), double or single or bare)
    return found
