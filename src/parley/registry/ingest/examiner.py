"""The examiner validates an entry: its owner, its card, its signatures, and thus its standing.

Checks are ordered by cost: form, authority, identity, then fetched documents.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from parley.database.errors import StoreUnavailable
from parley.model.cards import AgentCard
from parley.registry.catalog.entries import (
    A2A_CARD_TYPES,
    REGISTRY_TYPES,
    AirUrn,
    CatalogEntry,
    CatalogHost,
    InvalidUrn,
    is_within,
    media_type,
    one_line,
)
from parley.registry.catalog.reading import write_entry
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.ingest.addresses import (
    UnfitAddress,
    any_speaks_for,
    checked_address,
    domain_of,
    host_of,
    is_encrypted,
    speaks_for,
)
from parley.registry.ingest.fetching import WebFetcher
from parley.registry.ingest.reading import (
    CARD_SIGNERS,
    MANIFEST_SIGNERS,
    SOURCE,
    CardFinding,
    CardReader,
    ListedEntry,
    fields_of,
    one_form,
)
from parley.registry.ingest.signatures import (
    CardSignatures,
    ManifestVerifier,
    PublishedKeySets,
    Signing,
    wrong_digest,
)
from parley.registry.records import Authority, EntryDraft, EntryStanding, IndexedEntry, Trust
from parley.registry.search.texts import marks_of, texts_of

log = logging.getLogger("parley.registry")

MAX_REASON = 1_000
MAX_TOLD = 100
"""The number of rejected entries of one visit or publication the log names."""
MAX_TYPE = 200
EXAMINATION_CONCURRENCY = 8
"""The number of entries of a source examined concurrently."""

NOT_YET = "its card has not been read yet"
MAX_KEPT_ENTRY_BYTES = 320 * 1024
"""The size limit, in bytes with its card, of an entry that is stored whole before its
examination.
"""

REFERRAL = "a registry, for referrals of searches"

_FOUND = (EntryStanding.LISTED, EntryStanding.SHADOWED)
"""The standings of valid entries."""


class Rejection(Exception):
    """An entry is invalid, or claims another owner's identifier. The message gives the reason.

    ``is_too_large``: only its identifying members are stored.
    """

    def __init__(self, reason: str, *, is_too_large: bool = False) -> None:
        super().__init__(reason)
        self.is_too_large = is_too_large


class Examiner:
    """Examines entries. ``fetcher`` fetches every required document."""

    def __init__(self, fetcher: WebFetcher) -> None:
        self._fetcher = fetcher
        self._limits = fetcher.limits
        self._cards = CardReader(fetcher)
        keys = PublishedKeySets(fetcher)
        self._signatures = CardSignatures(fetcher, keys)
        self._manifests = ManifestVerifier(fetcher, keys)

    async def examine(
        self,
        entry: CatalogEntry,
        *,
        source: str,
        authority: Authority,
        owner: str = "",
        audience: Iterable[str] = (),
        before: IndexedEntry | None = None,
        elsewhere: Iterable[IndexedEntry] = (),
        domains: Iterable[str] | None = None,
        host: CatalogHost | None = None,
        fresh: bool = False,
    ) -> EntryDraft:
        """Return the entry in the form of the index, with its standing and the reason.

        ``authority`` is the authority of the source: ``OPERATOR`` and ``PROVED`` are accepted; with
        ``DOMAIN`` a domain in ``domains`` must speak for the publisher. Without ``domains`` it is
        the domain of ``source``. ``before`` is the earlier entry of this source, whose keys stay
        pinned. ``elsewhere`` are the entries of other sources with its identifier, whose keys apply
        to a new entry. ``host`` is the host of the catalog. With ``fresh`` its card is fetched
        again, even from within its cache lifetime.
        """
        kind = media_type(entry.type)
        pinned = pinned_keys(before, elsewhere)
        draft = EntryDraft(
            identifier=entry.identifier,
            source=source,
            publisher="",
            entry=write_entry(entry),
            version=entry.version,
            type=kind,
            url=entry.url,
            owner=owner,
            audience=tuple(audience),
        )
        if domains is None:
            domains = (domain_of(source),) if is_encrypted(source) else ()
        try:
            draft = self._checked_form(draft, entry)
            draft = self._authorized(draft, authority, tuple(domains))
        except Rejection as error:
            return _rejected(draft, error, pinned)
        manifest = await self._manifests.check(entry, draft.publisher, source)
        finding = CardFinding()
        if kind in A2A_CARD_TYPES:
            known = before.card if before else None
            finding = await self._cards.read(entry, known, fresh=fresh)
        signing = Signing()
        if finding.is_passing and before is not None and before.card and before.url == entry.url:
            # The findings about the card stay: its unavailability now proves nothing against the
            # entry.
            if before.standing not in _FOUND:
                return before.draft
            finding = _as_before(finding, before.card)
            signing = _signing_before(before)
        elif finding.card is not None:
            signing = await self._signatures.check(
                finding.raw, finding.url, draft.publisher, source
            )
            if finding.url and (wrong := wrong_digest(entry, finding.raw)):
                manifest = Signing(trust=Trust.FAILED, reason=wrong, is_signed=manifest.is_signed)
            finding = _signed_part(finding, signing)
        pins = _Pins(before, pinned)
        return self._judged(draft, entry, manifest, finding, signing, pins, host)

    def _checked_form(self, draft: EntryDraft, entry: CatalogEntry) -> EntryDraft:
        """Return a draft with a canonical identifier. Raises ``Rejection``."""
        try:
            size = len(msgspec.json.encode(draft.entry))
        except (RecursionError, TypeError, ValueError):
            raise Rejection("it is nested too deeply", is_too_large=True) from None
        limit = self._limits.entry_bytes
        # An inline card has its own size limit.
        if media_type(entry.type) in A2A_CARD_TYPES and entry.data is not None:
            limit += self._limits.card_bytes
        if size > limit:
            words = f"it has {size:,} bytes; an entry may have at most {limit:,}"
            raise Rejection(words, is_too_large=True)
        if len(draft.type) > MAX_TYPE or "/" not in draft.type:
            raise Rejection(f"its type, {draft.type[:80]!r}, is not a media type")
        try:
            urn = AirUrn.parse(entry.identifier)
        except InvalidUrn as error:
            raise Rejection(f"its identifier is invalid: {error}") from None
        draft = msgspec.structs.replace(draft, identifier=str(urn), publisher=urn.publisher)
        if entry.url:
            try:
                checked_address(entry.url, plain=self._fetcher.plain)
            except UnfitAddress as error:
                raise Rejection(f"its address is invalid: {error}") from None
        return draft

    def _authorized(
        self, draft: EntryDraft, authority: Authority, domains: tuple[str, ...]
    ) -> EntryDraft:
        """Return a draft with its authority. Raises ``Rejection``."""
        publisher = draft.publisher
        is_by_domain = authority is Authority.DOMAIN and any_speaks_for(domains, publisher)
        if is_by_domain or authority in (Authority.OPERATOR, Authority.PROVED):
            return msgspec.structs.replace(draft, authority=authority)
        if domains:
            whose = f"its catalog belongs to {', '.join(domains)}"
        elif not is_encrypted(draft.source):
            whose = "its catalog was not fetched over https"
        else:
            whose = f"its catalog was named by another site, and {host_of(draft.source)} does not "
            whose += "announce it"
        raise Rejection(f"it claims the publisher {publisher}, but {whose}")

    def _judged(
        self,
        draft: EntryDraft,
        entry: CatalogEntry,
        manifest: Signing,
        finding: CardFinding,
        signing: Signing,
        pins: _Pins,
        host: CatalogHost | None,
    ) -> EntryDraft:
        """Return a draft with all findings, and its standing."""
        fields = fields_of(
            entry, publisher=draft.publisher, source=draft.source, card=finding.card, host=host
        )
        texts = texts_of(entry, finding.card)
        trust = _trust(manifest, signing)
        draft = msgspec.structs.replace(
            draft,
            trust=trust,
            trust_reason=_trust_reason(trust, manifest, signing),
            card=finding.raw or None,
            card_digest=finding.digest,
            texts=texts,
            marks=marks_of(texts),
        )
        standing, reason = self._standing(draft, manifest, finding, signing)
        if draft.card is not None or draft.type not in A2A_CARD_TYPES:
            held = pins.broken(draft, manifest, signing)
            if held:
                standing, reason = EntryStanding.HELD, held
        is_held = standing is EntryStanding.HELD
        pins.write(fields, manifest, signing, is_held=is_held, has_card=finding.card is not None)
        return msgspec.structs.replace(
            draft, standing=standing, reason=one_line(reason, MAX_REASON), fields=fields
        )

    def _standing(
        self, draft: EntryDraft, manifest: Signing, finding: CardFinding, signing: Signing
    ) -> tuple[EntryStanding, str]:
        for each in (manifest, signing):
            if each.trust is Trust.FAILED:
                return EntryStanding.REJECTED, each.reason
        if draft.type not in A2A_CARD_TYPES:
            return EntryStanding.LISTED, REFERRAL * (draft.type in REGISTRY_TYPES)
        if finding.card is None:
            waits = EntryStanding.PENDING if finding.is_passing else EntryStanding.REJECTED
            return waits, finding.problem
        notes = [finding.problem] if finding.problem else []
        notes += _elsewhere(finding.card, draft.publisher)
        return EntryStanding.LISTED, "; ".join(notes)


class _Pins:
    """The keys to which an entry is pinned: the keys that signed it when it was first seen.

    An entry without a signature by these keys is held for the operator. When the operator has
    approved it, its new keys are pinned instead.
    """

    def __init__(self, before: IndexedEntry | None, pinned: Mapping[str, tuple[str, ...]]) -> None:
        self._before = before
        self._card = pinned.get(CARD_SIGNERS, ())
        self._manifest = pinned.get(MANIFEST_SIGNERS, ())

    def broken(self, draft: EntryDraft, manifest: Signing, signing: Signing) -> str:
        """Return how an entry violates its pinned keys; empty if it does not."""
        before = self._before
        is_decided = (
            before is not None
            and before.standing in _FOUND
            and before.card_digest == draft.card_digest
            and before.entry.get("trustManifest") == draft.entry.get("trustManifest")
        )
        if is_decided and Trust.FAILED not in (manifest.trust, signing.trust):
            return ""
        return _broken("card", self._card, signing) or _broken(
            "trust manifest", self._manifest, manifest
        )

    def write(
        self,
        fields: dict[str, tuple[str, ...]],
        manifest: Signing,
        signing: Signing,
        *,
        is_held: bool,
        has_card: bool,
    ) -> None:
        """Set the pins; the old pins stay while an entry is held or its signatures cannot be
        checked.

        Signatures by an old and a new key pin both: this is how keys are rotated.
        """
        for path, old, found, is_there in (
            (CARD_SIGNERS, self._card, signing, has_card),
            (MANIFEST_SIGNERS, self._manifest, manifest, True),
        ):
            keeps = is_held or found.is_open or not is_there or found.trust is Trust.FAILED
            new = old if keeps else found.signers
            fields.pop(path, None)
            if new:
                fields[path] = new


def pinned_keys(
    before: IndexedEntry | None, elsewhere: Iterable[IndexedEntry] = ()
) -> dict[str, tuple[str, ...]]:
    """Return the keys to which an entry is pinned, by their paths.

    An entry that its source has not listed yet gets the keys of its identifier in other sources, so
    that moving it to another catalog does not evade the pins.
    """
    others = tuple(elsewhere)
    is_own = before is not None and before.standing in (*_FOUND, EntryStanding.HELD)
    pinned: dict[str, tuple[str, ...]] = {}
    for path in (CARD_SIGNERS, MANIFEST_SIGNERS):
        keys = before.fields.get(path, ()) if before is not None else ()
        if not keys and not is_own:
            keys = tuple(sorted({key for each in others for key in each.fields.get(path, ())}))
        if keys:
            pinned[path] = tuple(keys)
    return pinned


def _broken(what: str, pinned: tuple[str, ...], found: Signing) -> str:
    if not pinned or set(pinned) & set(found.signers):
        return ""
    key = pinned[0][:16]
    if found.trust is Trust.FAILED:
        return f"its {what} was signed by the key {key}...; now: {found.reason}"
    if found.is_open:
        return f"its {what} changed, and was signed by the key {key}... before: {found.reason}"
    if found.signers:
        new = found.signers[0][:16]
        return f"its {what} was signed by the key {key}..., and now by another key: {new}..."
    return f"its {what} was signed by the key {key}..., and no longer is"


def _signing_before(before: IndexedEntry) -> Signing:
    """Return the result of the signatures of a card when it was read."""
    signers = before.fields.get(CARD_SIGNERS, ())
    trust = Trust.VERIFIED if signers else Trust.UNPROVED
    return Signing(trust=trust, signers=signers, is_signed=bool(signers))


def _as_before(finding: CardFinding, card: bytes) -> CardFinding:
    """Return the earlier card of an entry, with the problem of the new card."""
    from parley.client.card.resolver import read_card
    from parley.client.errors import CardInvalid

    try:
        return msgspec.structs.replace(finding, card=read_card(card, "the known card"), raw=card)
    except CardInvalid:
        return finding


def _signed_part(finding: CardFinding, signing: Signing) -> CardFinding:
    """Return a card with its signed members only: others may have been added in transit."""
    from parley.client.card.resolver import read_card
    from parley.client.errors import CardInvalid

    if signing.members is None or signing.trust is not Trust.VERIFIED:
        return finding
    try:
        signed = read_card(msgspec.json.encode(signing.members), "the signed part of the card")
    except CardInvalid as error:
        return msgspec.structs.replace(finding, card=None, problem=str(error), is_passing=False)
    return msgspec.structs.replace(finding, card=signed)


def _trust(manifest: Signing, signing: Signing) -> Trust:
    found = {manifest.trust, signing.trust}
    return next(each for each in (Trust.FAILED, Trust.VERIFIED, Trust.UNPROVED) if each in found)


def _trust_reason(trust: Trust, manifest: Signing, signing: Signing) -> str:
    """Return the findings about signatures: the valid ones first, then the others."""
    words = []
    if trust is Trust.VERIFIED:
        if signing.trust is trust:
            words.append("its card is signed by its publisher")
        if manifest.trust is trust:
            words.append("its trust manifest is signed by its publisher")
    words += [each.reason for each in (manifest, signing) if each.reason]
    return one_line("; ".join(words), MAX_REASON)


def _elsewhere(card: AgentCard, publisher: str) -> list[str]:
    """Return the addresses of a card outside its publisher's domain, for the operator."""
    notes = []
    if card.provider is not None and card.provider.url:
        host = host_of(card.provider.url)
        if host and not _is_near(host, publisher):
            notes.append(f"its card names a provider at {host[:100]}, outside of {publisher}")
    hosts = dict.fromkeys(host_of(each.url) for each in card.supported_interfaces[:32])
    away = [each[:100] for each in hosts if each and not _is_near(each, publisher)]
    if away:
        notes.append(f"it is called at {', '.join(away[:4])}, outside of {publisher}")
    return notes


def _is_near(host: str, publisher: str) -> bool:
    return is_within(host, publisher) or speaks_for(domain_of(f"https://{host}/"), publisher)


def rejected(
    entry: CatalogEntry,
    source: str,
    reason: str,
    before: IndexedEntry | None = None,
    elsewhere: Iterable[IndexedEntry] = (),
) -> EntryDraft:
    """Return an entry that is rejected for its position (a loop, too deep), or that is not examined
    yet.

    It is complete, so that it can be examined later, unless it is too large.
    """
    written = write_entry(entry)
    draft = EntryDraft(
        identifier=one_form(entry.identifier),
        source=source,
        publisher=_publisher(entry.identifier),
        entry=_cut(written) if _is_too_large(written) else written,
        version=entry.version,
        type=media_type(entry.type),
        url=entry.url,
    )
    return _rejected(draft, Rejection(reason), pinned_keys(before, elsewhere))


def _rejected(
    draft: EntryDraft, error: Rejection, pinned: Mapping[str, tuple[str, ...]]
) -> EntryDraft:
    """Return a draft with its reason; its pinned keys stay."""
    fields: dict[str, tuple[str, ...]] = {SOURCE: (draft.source,)}
    if draft.publisher:
        fields["publisher"] = (draft.publisher,)
    fields.update(pinned)
    return msgspec.structs.replace(
        draft,
        identifier=one_form(draft.identifier),
        type=draft.type[:MAX_TYPE],
        entry=_cut(draft.entry) if error.is_too_large else draft.entry,
        standing=EntryStanding.REJECTED,
        reason=one_line(str(error), MAX_REASON),
        fields=fields,
    )


def _publisher(identifier: str) -> str:
    try:
        return AirUrn.parse(identifier).publisher
    except InvalidUrn:
        return ""


def _is_too_large(entry: Mapping[str, Any]) -> bool:
    try:
        return len(msgspec.json.encode(entry)) > MAX_KEPT_ENTRY_BYTES
    except (RecursionError, TypeError, ValueError):
        return True


def _cut(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identifying members of an entry that is too large.

    They have no address, so that the remainder is not examined as a complete entry.
    """
    names = ("identifier", "displayName", "type")
    return {name: entry[name] for name in names if name in entry}


class SourceExamination:
    """Examines entries of one source, a few at a time, for ``seconds`` in all and ``entry_seconds``
    for each.
    """

    def __init__(
        self,
        index: RegistryIndex,
        examiner: Examiner,
        source: str,
        seconds: float,
        entry_seconds: float,
    ) -> None:
        self._index = index
        self._examiner = examiner
        self._source = source
        self._until = asyncio.get_running_loop().time() + seconds
        self._entry_seconds = entry_seconds

    async def of_all(
        self,
        entries: Iterable[ListedEntry],
        examine: Callable[[ListedEntry], Awaitable[EntryDraft | None]],
    ) -> list[EntryDraft]:
        """Return the drafts of entries; entries without a draft are left out."""
        turns = asyncio.Semaphore(EXAMINATION_CONCURRENCY)

        async def one(listed: ListedEntry) -> EntryDraft | None:
            async with turns:
                return await examine(listed)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(each)) for each in entries]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [draft for task in tasks if (draft := task.result()) is not None]

    async def known(self, identifier: str) -> tuple[IndexedEntry | None, list[IndexedEntry]]:
        """Return the source's earlier entry of an identifier, and the entries of other sources."""
        known = await self._index.entries_of(identifier)
        own = next((each for each in known if each.source == self._source), None)
        return own, [each for each in known if each is not own]

    async def one(
        self,
        listed: ListedEntry,
        before: IndexedEntry | None,
        elsewhere: Sequence[IndexedEntry],
        **terms: Any,
    ) -> EntryDraft | None:
        """Return the draft of an entry, ``None`` if the time is over.

        ``terms`` are further keywords of ``Examiner.examine``. An examination that fails rejects
        the entry.
        """
        left = self._until - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(left, self._entry_seconds)):
                return await self._examiner.examine(
                    listed.entry,
                    source=self._source,
                    before=before,
                    elsewhere=elsewhere,
                    host=listed.host,
                    **terms,
                )
        except TimeoutError:
            return None
        except StoreUnavailable:
            raise
        except Exception as error:
            log.exception("the entry %.200s of %.200s", listed.identifier, self._source)
            words = f"its examination failed: {type(error).__name__}, see the log of the registry"
            return rejected(listed.entry, self._source, words, before, elsewhere)

    def pending(self, listed: ListedEntry, elsewhere: Sequence[IndexedEntry] = ()) -> EntryDraft:
        """Return the draft of an entry that is examined later."""
        draft = rejected(listed.entry, self._source, NOT_YET, None, elsewhere)
        return msgspec.structs.replace(draft, standing=EntryStanding.PENDING)


class RefusalLog:
    """Logs each rejected or held entry with its reason: once for each reason."""

    def __init__(self, source: str) -> None:
        self._source = one_line(source, MAX_REASON)
        self._count = 0

    def tell(
        self, identifier: str, standing: str, reason: str, before: IndexedEntry | None
    ) -> None:
        """Log an entry, unless the index has it with the same standing and reason."""
        if standing not in ("rejected", "held", "refused"):
            return
        if before is not None and (before.standing, before.reason) == (standing, reason):
            return
        self._count += 1
        if self._count <= MAX_TOLD:
            words = "the entry %.200s of %.200s is %s: %.500s"
            shown = one_line(identifier, MAX_REASON), self._source, standing
            log.warning(words, *shown, one_line(reason, MAX_REASON))

    def end(self) -> None:
        """Log the number of entries that were not named."""
        if self._count > MAX_TOLD:
            words = (
                "%d more entries of %.200s are rejected or held: parley agents waiting lists them"
            )
            log.warning(words, self._count - MAX_TOLD, self._source)
