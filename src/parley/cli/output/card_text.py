"""An agent card as labelled text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parley.cli.output.text import TextWriter, json_text
from parley.client.card.trust import CardCheck
from parley.extensions.declared import SkillSchema, schemas_on
from parley.model.cards import (
    AgentCard,
    AgentInterface,
    AgentSkill,
    SecurityRequirement,
    SecurityScheme,
)


def write_card(
    write: TextWriter,
    card: AgentCard,
    selected: AgentInterface | None,
    *,
    check: CardCheck,
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
    """Return a line for each member of the values of a JSON Schema, else one for the value."""
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
    """Return the kind of the values of a JSON Schema, on one line."""
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
