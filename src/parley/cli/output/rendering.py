"""Cards, messages, tasks and events of an agent as labelled text. Every part appears."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from parley.cli.output.text import TextWriter, json_text
from parley.client.calls.stream_reader import new_output, restates_prior_question
from parley.client.card.trust import CardCheck
from parley.extensions.declared import SkillSchema, schemas_on
from parley.extensions.usage import run_progress
from parley.model.cards import (
    AgentCard,
    AgentInterface,
    AgentSkill,
    SecurityRequirement,
    SecurityScheme,
)
from parley.model.ids import INCIDENT_KEY
from parley.model.operations import ListTasksResponse
from parley.model.parts import Artifact, Message, Part, text_of
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)


def write_card(
    write: TextWriter,
    card: AgentCard,
    selected: AgentInterface | None,
    *,
    check: CardCheck,
    signed: str,
    verbose: bool,
) -> None:
    """Write a card: identity, capabilities, interfaces, security, trust and skills."""
    write.field("Name", card.name)
    write.content("Description", card.description)
    write.field("Version", card.version)
    if card.provider is not None:
        write.field("Provider", f"{card.provider.organization} ({card.provider.url})")
    if card.documentation_url:
        write.field("Documentation", card.documentation_url)
    if verbose and card.icon_url:
        write.field("Icon", card.icon_url)
    _write_capabilities(write, card)
    for interface in card.supported_interfaces:
        write.field("Interface", describe_interface(interface))
    write.field("Selected", describe_interface(selected) if selected else "none")
    write.field("Input modes", ", ".join(card.default_input_modes))
    write.field("Output modes", ", ".join(card.default_output_modes))
    for name, scheme in card.security_schemes.items():
        write.field("Security scheme", f"{name}: {describe_scheme(scheme)}")
    for requirement in card.security_requirements:
        write.field("Security requirement", describe_requirement(requirement))
    write.field("Signature check", signed)
    if card.signatures:
        write.field("Signatures", str(len(card.signatures)))
        for line in str(check).splitlines():
            write.field("Trust", line)
    schemas = schemas_on(card)
    for skill in card.skills:
        _write_skill(write, skill, schemas.get(skill.id, SkillSchema()), verbose=verbose)


def _write_capabilities(write: TextWriter, card: AgentCard) -> None:
    capabilities = card.capabilities
    write.field("Streaming", _yes(capabilities.streaming))
    write.field("Push notifications", _yes(capabilities.push_notifications))
    write.field("Extended card", _yes(capabilities.extended_agent_card))
    for extension in capabilities.extensions:
        needed = " (required)" if extension.required else ""
        write.field("Extension", f"{extension.uri}{needed}")


def _write_skill(
    write: TextWriter, skill: AgentSkill, schemas: SkillSchema, *, verbose: bool
) -> None:
    write.gap()
    write.field("Skill", skill.id)
    write.field("Name", skill.name)
    write.content("Description", skill.description)
    if skill.tags:
        write.field("Tags", ", ".join(skill.tags))
    for example in skill.examples:
        write.content("Example", example)
    for label, schema in (("Input", schemas.input), ("Output", schemas.output)):
        if schema is not None:
            write.content(label, "\n".join(_members(schema)))
            if verbose:
                write.content(f"{label} schema", json_text(schema))
    if verbose and skill.input_modes:
        write.field("Input modes", ", ".join(skill.input_modes))
    if verbose and skill.output_modes:
        write.field("Output modes", ", ".join(skill.output_modes))
    for requirement in skill.security_requirements:
        write.field("Security requirement", describe_requirement(requirement))


def _members(schema: Mapping[str, Any]) -> list[str]:
    """Return a line for each property of a JSON Schema, or one line for a schema without
    properties.
    """
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return [_kind(schema)]
    required = schema.get("required")
    needed = required if isinstance(required, list) else ()
    return [
        f"{name}: {_kind(each)}{'' if name in needed else ', optional'}"
        for name, each in properties.items()
    ]


def _kind(schema: Any) -> str:
    """Return the type of a JSON Schema, on one line."""
    if not isinstance(schema, Mapping):
        return "any value"
    for given in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
        if isinstance(given, list):
            return " or ".join(map(json_text, given))
    either = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(either, list):
        return " or ".join(dict.fromkeys(map(_kind, either)))
    if isinstance(reference := schema.get("$ref"), str):
        return reference.rpartition("/")[2]
    kinds = schema.get("type", "any value")
    text = " or ".join(map(str, kinds)) if isinstance(kinds, list) else str(kinds)
    if text == "array" and isinstance(schema.get("items"), Mapping):
        text = f"array of {_kind(schema['items'])}"
    return f"{text} ({schema['format']})" if isinstance(schema.get("format"), str) else text


def describe_interface(interface: AgentInterface) -> str:
    """Return binding, version and address of an interface, on one line."""
    tenant = f" tenant {interface.tenant}" if interface.tenant else ""
    return f"{interface.protocol_binding} {interface.protocol_version} {interface.url}{tenant}"


def describe_scheme(scheme: SecurityScheme) -> str:
    """Return the required credential, on one line."""
    if (key := scheme.api_key_security_scheme) is not None:
        return f"API key in {key.location} {key.name}"
    if (http := scheme.http_auth_security_scheme) is not None:
        return f"HTTP {http.scheme}" + (f" ({http.bearer_format})" if http.bearer_format else "")
    if scheme.oauth2_security_scheme is not None:
        return "OAuth 2"
    if (connect := scheme.open_id_connect_security_scheme) is not None:
        return f"OpenID Connect {connect.open_id_connect_url}"
    return "client certificate (mutual TLS)"


def describe_requirement(requirement: SecurityRequirement) -> str:
    """Return the schemes of one requirement, all needed together, with their scopes."""
    schemes = [
        name + (f" ({' '.join(scopes.list)})" if scopes.list else "")
        for name, scopes in requirement.schemes.items()
    ]
    return " and ".join(schemes) or "none"


def _yes(value: bool | None) -> str:
    return "yes" if value else "no"


TEXT, DATA, FILE = "Text", "Data", "File"

THINKING = "thinking"
"""The key of the block for thinking."""

MAX_NAME, MAX_PROGRESS = 100, 200
"""The number of characters of a tool's name shown, and of its arguments and result."""


def write_task(write: TextWriter, task: Task, *, verbose: bool) -> None:
    """Write a task: its ids, state, status message and artifacts."""
    write.field("Task", task.id)
    write.field("Context", task.context_id)
    write_status(write, task.status, verbose=verbose)
    for artifact in task.artifacts:
        write_artifact(write, artifact, verbose=verbose)
    if task.final_message is not None and not any(artifact.text for artifact in task.artifacts):
        write_parts(write, task.final_message.parts, verbose=verbose)
    if verbose:
        write_metadata(write, task.metadata)


def write_status(write: TextWriter, status: TaskStatus, *, verbose: bool) -> None:
    """Write a state exactly as received, and the status message."""
    write.field("State", status.state.value)
    if verbose and status.timestamp is not None:
        write.field("Since", status.timestamp)
    if status.message is not None:
        write_parts(write, status.message.parts, verbose=verbose, label="Status")
        incident = (status.message.metadata or {}).get(INCIDENT_KEY)
        if isinstance(incident, dict) and isinstance(skill := incident.get("skill"), str):
            write.field("Skill", skill)


def write_message(
    write: TextWriter, message: Message, *, verbose: bool, label: str = "Message"
) -> None:
    """Write a message: its ids, then its parts."""
    write.field(label, message.message_id)
    if message.task_id:
        write.field("Task", message.task_id)
    if message.context_id:
        write.field("Context", message.context_id)
    if verbose:
        write.field("Role", message.role.value)
        for uri in message.extensions:
            write.field("Extension", uri)
        for reference in message.reference_task_ids:
            write.field("Refers to", reference)
    write_parts(write, message.parts, verbose=verbose)
    if verbose:
        write_metadata(write, message.metadata)


def write_history(write: TextWriter, history: Sequence[Message], *, verbose: bool) -> None:
    """Write the messages of a task, the oldest first."""
    for message in history:
        write.field("History", message.message_id)
        write.field("Role", message.role.value)
        write_parts(write, message.parts, verbose=verbose)
        if verbose:
            write_metadata(write, message.metadata)


def write_artifact(write: TextWriter, artifact: Artifact, *, verbose: bool) -> None:
    """Write an artifact: its head, then its parts."""
    write_artifact_head(write, artifact, verbose=verbose)
    write_parts(
        write, artifact.parts if verbose else with_joined_text(artifact.parts), verbose=verbose
    )
    if verbose:
        write_metadata(write, artifact.metadata)


def write_artifact_head(write: TextWriter, artifact: Artifact, *, verbose: bool) -> None:
    """Write the id, name and description of an artifact, before its parts."""
    write.field("Artifact", artifact.artifact_id)
    if artifact.name:
        write.field("Name", artifact.name)
    if artifact.description:
        write.field("Description", artifact.description)
    if verbose:
        for uri in artifact.extensions:
            write.field("Extension", uri)


def write_parts(
    write: TextWriter, parts: Sequence[Part], *, verbose: bool, label: str = TEXT
) -> None:
    """Write parts: text unchanged, data as formatted JSON, files by name, type and size."""
    for part in parts:
        if part.text is not None:
            write.content(label, part.text)
        elif part.has_data:
            write.content(DATA, json_text(part.data, indent=2))
        else:
            write.field(FILE, file_line(part))
        if verbose:
            if part.media_type and not part.is_file:
                write.field("Media type", part.media_type)
            if part.filename and not part.is_file:
                write.field("Filename", part.filename)
            write_metadata(write, part.metadata)


def with_joined_text(parts: Sequence[Part]) -> list[Part]:
    """Return an artifact's parts with adjacent text parts joined."""
    whole: list[Part] = []
    for kind, group in groupby(parts, lambda part: (part.text is not None, part.media_type)):
        if kind[0]:
            whole.append(Part(text=text_of(tuple(group)), media_type=kind[1]))
        else:
            whole.extend(group)
    return whole


def write_metadata(write: TextWriter, metadata: dict[str, Any] | None) -> None:
    """Write metadata, if there is any."""
    if metadata:
        write.content("Metadata", json_text(metadata))


def write_page(write: TextWriter, page: ListTasksResponse, *, verbose: bool) -> None:
    """Write a page of tasks, then the total and the token of the next page."""
    for task in page.tasks:
        write_task(write, task, verbose=verbose)
        write.gap()
    write.field("Total", page.total_size)
    if page.next_page_token:
        write.field("Next page", page.next_page_token)


def file_line(part: Part, name: str = "") -> str:
    """Return a file's name, media type and size (or address), on one line.

    ``name`` is for a file without a name.
    """
    kind = part.media_type or "unknown type"
    size_or_url = f"{len(part.raw):,} bytes" if part.raw is not None else part.url
    return f"{part.filename or name or 'unnamed'} ({kind}, {size_or_url})"


class EventWriter:
    """Writes the events of a stream as they come; a growing text stays one block."""

    def __init__(self, write: TextWriter, flush: Callable[[], None], *, verbose: bool) -> None:
        self._write = write
        self._flush = flush
        self._verbose = verbose

    def event(self, event: Event, *, before: Task | None = None) -> None:
        """Write one event and flush.

        Of a continued task only the changes since ``before`` are written.
        """
        write, verbose = self._write, self._verbose
        if isinstance(event, TaskArtifactUpdateEvent):
            self._artifact(event)
        elif isinstance(event, TaskStatusUpdateEvent) and (shown := run_progress(event)):
            self._progress(shown)
        elif isinstance(event, TaskStatusUpdateEvent):
            # The last line of a stream names its task, so every status event does (§11.2).
            write.field("Task", event.task_id)
            write.field("Context", event.context_id)
            write_status(write, event.status, verbose=verbose)
        elif isinstance(event, Task):
            self._task(event, before)
        else:
            write_message(write, event, verbose=verbose)
        self._flush()

    def _progress(self, shown: dict[str, Any]) -> None:
        """Write the progress of a model run, dimmed: one line for each step, thinking
        as it grows.
        """
        write = self._write
        if shown["kind"] == "thinking":
            if write.open_block != THINKING:
                write.begin("Thinking", THINKING, dim=True)
            write.more(str(shown.get("text", "")))
        else:
            label, words = progress_line(shown)
            write.field(label, words, dim=True)

    def _task(self, task: Task, before: Task | None) -> None:
        if before is None or before.id != task.id:
            write_task(self._write, task, verbose=self._verbose)
            return
        self._write.field("Task", task.id)
        self._write.field("Context", task.context_id)
        if not restates_prior_question(before, task):
            write_status(self._write, task.status, verbose=self._verbose)
        for artifact in new_output(before, task).artifacts:
            write_artifact(self._write, artifact, verbose=self._verbose)
        if self._verbose:
            write_metadata(self._write, task.metadata)

    def _artifact(self, event: TaskArtifactUpdateEvent) -> None:
        write, artifact = self._write, event.artifact
        key = f"text of {artifact.artifact_id}"
        for number, part in enumerate(artifact.parts):
            continues = event.append and write.open_block == key
            if part.text is not None:
                if not continues:
                    if number == 0:
                        write_artifact_head(write, artifact, verbose=self._verbose)
                    write.begin(TEXT, key)
                write.more(part.text)
                continue
            if number == 0:
                write_artifact_head(write, artifact, verbose=self._verbose)
            write_parts(write, (part,), verbose=self._verbose)
        if not artifact.parts and write.open_block != key:
            write_artifact_head(write, artifact, verbose=self._verbose)
        if event.last_chunk and write.open_block == key:
            write.close()


def progress_line(shown: dict[str, Any]) -> tuple[str, str]:
    """Return the label and the text of a step of a model run, on one line."""
    kind, name = shown["kind"], str(shown.get("name", ""))[:MAX_NAME]
    if kind == "toolCall":
        return "Tool", f"{name} {_short(shown.get('arguments'))}"
    if kind == "toolResult":
        label = "Tool error" if shown.get("isError") else "Tool result"
        return label, f"{name}: {_short(shown.get('result'))}"
    if kind == "toolProgress":
        return "Tool", f"{name}: {_short(shown.get('text'))}"
    detail = shown.get("detail")
    words = "" if detail is None else f": {_short(detail)}"
    return "Step", f"{name or kind[:MAX_NAME]}{words}"


def _short(value: Any) -> str:
    """Return a value on one line, cut to the length for progress."""
    text = value if isinstance(value, str) else json_text(value)
    return text if len(text) <= MAX_PROGRESS else f"{text[:MAX_PROGRESS]}..."
