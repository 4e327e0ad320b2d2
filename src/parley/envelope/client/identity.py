"""Who a client says to be, the key that proves it, and the key of the agent that it calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from parley.client.errors import ClientError
from parley.envelope.messages import Envelope, Source
from parley.model.ids import RIGHT_NAME, may_be_name, new_id

if TYPE_CHECKING:
    from parley.envelope.signatures import EnvelopeKey


class NotFromAgent(ClientError):
    """An answer is not signed with the agent's key. It is not used."""


class EnvelopeTooLarge(ClientError):
    """The message is larger than this side sends. Nothing was sent."""


class EnvelopeIdentity:
    """The source of messages, and the keys: ``key`` signs them, ``agent_key`` verifies answers.

    ``is_given``: the user chose the source. Without that, an agent that knows the caller may say
    what its credentials are for.
    """

    def __init__(
        self,
        source: Source,
        *,
        key: EnvelopeKey | None = None,
        agent_key: EnvelopeKey | None = None,
        is_given: bool = True,
    ) -> None:
        self.source = source
        self._is_given = is_given or key is not None
        self.target_id = ""
        """The id of the agent, which signed messages name as their target."""
        self._key = key
        self._agent_key = agent_key

    @classmethod
    def of(
        cls,
        agent_id: str = "",
        agent_type: str = "",
        *,
        key: EnvelopeKey | None = None,
        agent_key: EnvelopeKey | None = None,
    ) -> EnvelopeIdentity:
        """Return an identity; the owner of the key is its id, else one by chance.

        Raises ``ValueError`` for an id that is not the owner of the key, and for what is no id.
        """
        if key is not None and agent_id not in ("", key.owner):
            raise ValueError(
                f"the key is that of {key.owner!r}, so agent_id is that too, or left out"
            )
        instance = new_id()
        id = agent_id or (key.owner if key is not None else f"client-{instance}")
        for name, value in (("agent_id", id), ("agent_type", agent_type)):
            if not isinstance(value, str) or not may_be_name(value):
                raise ValueError(f"{name} is {RIGHT_NAME}, not {value!r:.80}")
        source = Source(agent_id=id, agent_type=agent_type or "client", instance_id=instance)
        return cls(source, key=key, agent_key=agent_key, is_given=bool(agent_id))

    @property
    def signs(self) -> bool:
        """Whether messages are signed."""
        return self._key is not None

    def rename(self, agent_id: str) -> bool:
        """Take the id that the credentials are for, unless the user chose one."""
        if self._is_given or agent_id == self.source.agent_id or not may_be_name(agent_id):
            return False
        self.source = msgspec.structs.replace(self.source, agent_id=agent_id)
        return True

    def write(self, message: Envelope, limit: int) -> bytes:
        """Return a message as it is sent: signed for this one time, if there is a key.

        Raises ``EnvelopeTooLarge``, and ``ValueError`` for what JSON cannot say.
        """
        from parley.envelope.codec import write_message

        if self._key is not None:
            is_open = not (message.target.agent_id or message.target.agent_type)
            if is_open and self.target_id:
                target = msgspec.structs.replace(message.target, agent_id=self.target_id)
                message = msgspec.structs.replace(message, target=target)
            from parley.envelope.signatures import sign_message
            from parley.model.struct import Timestamp

            message = sign_message(message, self._key, now=Timestamp.now())
        data = write_message(message)
        if len(data) > limit:
            raise EnvelopeTooLarge(
                f"the message has {len(data):,} bytes; this side sends at most {limit:,}: send "
                "large content as a file by reference"
            )
        return data

    def check(self, message: Envelope) -> None:
        """Check the signature of a message, if the key of the agent is known.

        Raises ``NotFromAgent``.
        """
        if self._agent_key is None:
            return
        from parley.envelope.errors import SignatureInvalid
        from parley.envelope.signatures import verify_signature

        if message.security is None:
            raise NotFromAgent("an answer is not signed, and the agent's key was given: not used")
        try:
            verify_signature(message, self._agent_key)
        except SignatureInvalid as error:
            raise NotFromAgent(f"an answer is not signed by the agent's key: {error}") from None
