"""A knowledge base, asked over the envelope protocol.

    parley serve examples/knowledge_base.py

and from another terminal one of

    python examples/knowledge_base_exchange.py
    curl -s http://localhost:9999/envelope --json @examples/knowledge_base_envelope.json

which send the REQUEST in `knowledge_base_envelope.json`, the first over a WebSocket and the second
by HTTP. Its card is at http://localhost:9999/envelope/card.
"""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from parley import Agent, CardDetails, DeclaredPerformance, EnvelopeSettings


class Article(msgspec.Struct):
    """What the knowledge base knows about one thing."""

    id: str
    title: str
    category: str
    language: str
    text: str


ARTICLES = [
    Article("kb-1", "Returning an order", "customer-service", "en",
            "Send an order back within 30 days. The refund comes when the parcel has arrived."),
    Article("kb-2", "When a refund arrives", "customer-service", "en",
            "A refund takes up to five days, and goes to the card that paid."),
    Article("kb-3", "Rückgabe einer Bestellung", "customer-service", "de",
            "Bestellungen gehen innerhalb von 30 Tagen zurück."),
    Article("kb-4", "Resetting a password", "technical", "en",
            "Choose 'Forgot password', and follow the link in the e-mail."),
    Article("kb-5", "退款政策", "customer-service", "zh",
            "收到货后30天内可以退货。包裹寄回后五天内,退款会退到付款的银行卡。"),
]  # fmt: skip


class Search(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """What is looked for."""

    query: Annotated[str, Meta(min_length=1, max_length=500, description="words to look for")]
    category: Literal["customer-service", "technical", ""] = ""
    language: Annotated[str, Meta(pattern="^[a-z]{2}(-[A-Z]{2})?$")] = "en"
    max_results: Annotated[int, Meta(ge=1, le=20)] = 5


class Found(msgspec.Struct, rename="camel"):
    """An article, and from 0 to 1 how well it answers."""

    id: str
    title: str
    content: str
    category: str
    confidence: float


agent = Agent(
    "Knowledge base",
    key="knowledge-base-01",
    description="Answers questions of customers from articles",
    version="1.0.0",
    card=CardDetails(
        envelope=EnvelopeSettings(
            agent_type="knowledge-base",
            vendor="Parley",
            license="Apache-2.0",
            tags=("search", "customer-service"),
            requests_per_minute=600,
            performance={
                "search": DeclaredPerformance(
                    average_response_time=50, max_concurrent_requests=100, reliability=0.999
                )
            },
        )
    ),
)


@agent.skill(tags=["search"], examples=['{"query": "How do I get a refund?"}'])
async def search(asked: Search) -> list[Found]:
    """Searches the knowledge base."""
    words = words_of(asked.query)
    found = [
        Found(each.id, each.title, each.text, each.category, confidence)
        for each in ARTICLES
        if each.language == asked.language[:2] and asked.category in ("", each.category)
        if (confidence := _confidence(words, each)) > 0
    ]
    return sorted(found, key=lambda each: -each.confidence)[: asked.max_results]


def words_of(text: str) -> set[str]:
    """Return the words of a text. Chinese does not part its words: each two characters count."""
    chinese = re.findall("[\u4e00-\u9fff]+", text)
    pairs = {run[at : at + 2] for run in chinese for at in range(max(1, len(run) - 1))}
    return pairs | set(re.findall(r"\w+", re.sub("[\u4e00-\u9fff]+", " ", text).lower()))


def _confidence(words: set[str], article: Article) -> float:
    known = words_of(f"{article.title} {article.text}")
    return round(len(words & known) / max(1, len(words)), 2)
