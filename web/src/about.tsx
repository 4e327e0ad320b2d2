// What the agent is, and its skills.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { begin, schemaOf, skillsOf } from "./chat/composer";
import type { AgentClient } from "./client/client";
import { type Skill, COMPOSITION, isObject, listOf } from "./client/types";
import { say } from "./i18n/words";
import { openable, plain } from "./render/text";
import { view } from "./view";

const MOST_EXAMPLES = 10;

export function About({ client }: { client: AgentClient }): JSX.Element {
  const { card } = client;
  const provider = card.provider?.organization;
  const website = openable(card.provider?.url);
  const documentation = openable(card.documentationUrl);
  return (
    <div class="about">
      <h1><bdi>{plain(card.name, 200)}</bdi></h1>
      {card.description && <p class="lead" dir="auto">{plain(card.description, 2000)}</p>}
      <p class="quiet">
        {card.version && <span>{say("version", { words: plain(card.version, 40) })}</span>}
        {provider && <span>{website ? <a href={website} target="_blank" rel="noopener noreferrer">{plain(provider, 100)}</a> : plain(provider, 100)}</span>}
        {documentation && <a href={documentation} target="_blank" rel="noopener noreferrer">{say("documentation")}</a>}
      </p>
    </div>
  );
}

export function Skills({ client }: { client: AgentClient }): JSX.Element {
  const skills = skillsOf(client.card);
  return (
    <section class="skills" aria-labelledby="skills-title">
      <h2 id="skills-title">{say("skills")}</h2>
      {skills.length ? <ul>{skills.map((skill) => <SkillView key={skill.id} skill={skill} client={client} />)}</ul> : <p class="quiet">{say("noSkills")}</p>}
      <Composition client={client} />
    </section>
  );
}

function SkillView({ skill, client }: { skill: Skill; client: AgentClient }): JSX.Element {
  const hasForm = schemaOf(client, skill.id) !== null;
  const use = (text: string, asForm: boolean): void => {
    view.value = "chat";
    begin(skill.id, text, asForm);
  };
  const examples = listOf(skill.examples).filter((each) => typeof each === "string").slice(0, MOST_EXAMPLES);
  const tags = listOf(skill.tags).slice(0, 20).map((each) => plain(each, 40)).join(", ");
  return (
    <li>
      <h3><bdi>{plain(skill.name || skill.id, 120)}</bdi></h3>
      {skill.description && <p dir="auto">{plain(skill.description, 1000)}</p>}
      {tags && <p class="quiet tags">{tags}</p>}
      <div class="actions"><button type="button" class="plain small" onClick={() => use("", hasForm)}>{say(hasForm ? "fillForm" : "useSkill")}</button></div>
      {examples.length > 0 && (
        <ul class="examples" aria-label={say("examples")}>
          {examples.map((each) => <li key={each}><button type="button" class="link" onClick={() => use(each, false)}><bdi>{plain(each, 300)}</bdi></button></li>)}
        </ul>
      )}
    </li>
  );
}

// The picture of a composition: an image, so nothing in it runs.
function Composition({ client }: { client: AgentClient }): JSX.Element | null {
  const [picture, setPicture] = useState("");
  const mermaid = client.params(COMPOSITION)?.mermaid;
  useEffect(() => {
    if (typeof mermaid !== "string") return;
    fetch(`${client.base}/openapi.json`, { headers: client.credentials().headers })
      .then((answer) => (answer.ok ? answer.json() : null))
      .then((found: unknown) => {
        const info = isObject(found) && isObject(found.info) ? found.info["x-parley-composition"] : null;
        if (isObject(info) && typeof info.svg === "string") setPicture(`data:image/svg+xml;charset=utf-8,${encodeURIComponent(info.svg)}`);
      })
      .catch(() => undefined);
  }, [mermaid]);
  if (typeof mermaid !== "string") return null;
  return (
    <details class="composition" open>
      <summary>{say("composition")}</summary>
      {picture ? <div class="wide" tabIndex={0} role="group" aria-label={say("composition")}><img src={picture} alt={plain(mermaid, 2000)} /></div> : <pre tabIndex={0}>{plain(mermaid, 5000)}</pre>}
    </details>
  );
}
