// The menu that copies an exchange.

import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { AgentClient } from "../client/client";
import type { Message } from "../client/types";
import { say } from "../i18n/words";
import { newId } from "../state/conversation";
import { type Way, written } from "./copy";

export function CopyMenu({ client, message, skill }: { client: AgentClient; message: Message; skill: string }): JSX.Element {
  const [way, setWay] = useState<Way>("curl");
  const [isOpen, setOpen] = useState(false);
  const [isCopied, setCopied] = useState(false);
  const ways: [Way, string][] = [["curl", "curl"], ["python", "Python"], ["command", say("command")]];
  // Sent again, it is another message: with the same id it would get the same answer.
  const again = useMemo(() => ({ ...message, messageId: newId() }), [message.messageId]);
  const text = isOpen ? written(way, client, again, skill) : "";
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
      setTimeout(() => setCopied(false), 2000);
    } catch {
      // The text is shown, and can be selected.
    }
  };
  return (
    <details class="copy" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{say("copyAs")}</summary>
      {isOpen && (
        <>
          <div class="actions" role="group" aria-label={say("copyAs")}>
            {ways.map(([each, label]) => (
              <button key={each} type="button" class="plain small" aria-pressed={way === each} onClick={() => setWay(each)}>{label}</button>
            ))}
            <button type="button" class="small" onClick={() => { void copy(); }}>{say("copy")}</button>
            <span role="status">{isCopied ? say("copied") : ""}</span>
          </div>
          <pre tabIndex={0}><code>{text}</code></pre>
        </>
      )}
    </details>
  );
}
