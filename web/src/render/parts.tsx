// The parts of messages and artifacts: text, data, pictures and files.

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import type { AgentClient } from "../client/client";
import { type Part, isObject, listOf } from "../client/types";
import { say } from "../i18n/words";
import { Data, More } from "./data";
import { Markdown, PlainText } from "./markdown";
import { openable, plain } from "./text";

const STEP = 100;
const MOST_PICTURE = 20 * 1024 * 1024;
// A browser runs nothing in pictures of these types. SVG is shown as a file.
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"];
export const SCHEMA_TYPE = "application/schema+json";
export const AUTHORIZATION_TYPE = "application/vnd.parley.authorization-request+json";

// The parts of a question that forms are made of are not shown as data.
const isForForm = (part: Part): boolean =>
  part.mediaType === SCHEMA_TYPE || part.mediaType === AUTHORIZATION_TYPE;

export function Parts({ parts, client, isOwn = false }: { parts: readonly Part[] | undefined; client: AgentClient; isOwn?: boolean }): JSX.Element {
  const [count, setCount] = useState(STEP);
  const shown = listOf(parts).filter((each) => isObject(each) && !isForForm(each));
  return (
    <>
      {shown.slice(0, count).map((part, place) => <PartView key={place} part={part} client={client} isOwn={isOwn} />)}
      <More left={shown.length - count} onMore={() => setCount(count + STEP)} />
    </>
  );
}

function PartView({ part, client, isOwn }: { part: Part; client: AgentClient; isOwn: boolean }): JSX.Element | null {
  if (typeof part.text === "string") {
    if (part.filename) return <FileView part={part} bytes={() => new TextEncoder().encode(part.text)} />;
    const isPlain = isOwn || (part.mediaType !== undefined && !part.mediaType.startsWith("text/markdown"));
    return isPlain ? <PlainText text={part.text} /> : <Markdown text={part.text} />;
  }
  if (typeof part.raw === "string") return <FileView part={part} bytes={() => bytesOf(part.raw ?? "")} />;
  if (typeof part.url === "string") return <Remote part={part} url={part.url} client={client} />;
  if ("data" in part) return <Data value={part.data} />;
  return null;
}

export function bytesOf(base64: string): Uint8Array<ArrayBuffer> | null {
  try {
    return Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
  } catch {
    return null;
  }
}

const nameOf = (part: Part): string => plain(part.filename, 120).replace(/[\\/]/g, "_") || say("file");

// A blob's type decides what a browser does with it: what could be a page is only bytes.
const blobType = (mediaType: string | undefined): string => (mediaType && PICTURES.includes(mediaType) ? mediaType : "application/octet-stream");

function useAddress(blob: Blob | null): string {
  const [address, setAddress] = useState("");
  useEffect(() => {
    if (!blob) return undefined;
    const made = URL.createObjectURL(blob);
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [blob]);
  return address;
}

function FileView({ part, bytes }: { part: Part; bytes: () => Uint8Array<ArrayBuffer> | null }): JSX.Element {
  const blob = useMemo(() => {
    const found = bytes();
    return found ? new Blob([found], { type: blobType(part.mediaType) }) : null;
  }, [part.raw, part.text, part.mediaType]);
  return <BlobView blob={blob} part={part} />;
}

function BlobView({ blob, part }: { blob: Blob | null; part: Part }): JSX.Element {
  const address = useAddress(blob);
  const isPicture = PICTURES.includes(part.mediaType ?? "") && blob !== null && blob.size <= MOST_PICTURE;
  const name = nameOf(part);
  return (
    <figure class="file">
      {isPicture && address && <img src={address} alt={name} />}
      <figcaption>
        {address ? <a href={address} download={name}>{say("download", { words: name })}</a> : <span>{name}</span>}{" "}
        <span class="quiet">{[plain(part.mediaType, 80), blob ? size(blob.size) : ""].filter(Boolean).join(", ")}</span>
      </figcaption>
    </figure>
  );
}

// A file at an address: of this server it is read with the credentials, others are links.
function Remote({ part, url, client }: { part: Part; url: string; client: AgentClient }): JSX.Element {
  const path = client.here(url);
  const [blob, setBlob] = useState<Blob | null>(null);
  const [problem, setProblem] = useState("");
  const isPicture = path !== null && PICTURES.includes(part.mediaType ?? "");
  const read = (): void => {
    if (path === null) return;
    client.file(path).then(
      (found) => setBlob(new Blob([found], { type: blobType(part.mediaType) })),
      (error: unknown) => setProblem(error instanceof Error ? error.message : String(error)),
    );
  };
  useEffect(() => { if (isPicture) read(); }, [url]);
  if (blob) return <BlobView blob={blob} part={part} />;
  const address = openable(url);
  const words = plain(part.filename, 120) || plain(url, 200);
  if (path !== null) {
    return (
      <p class="file">
        <button type="button" class="plain small" onClick={read}>{say("download", { words: nameOf(part) })}</button>
        {problem && <span class="bad" role="alert"> {plain(problem)}</span>}
      </p>
    );
  }
  return (
    <p class="file">
      {address === null ? <span>{words}</span> : <a href={address} target="_blank" rel="noopener noreferrer">{say("remoteFile", { words })}</a>}
    </p>
  );
}

export function size(bytes: number): string {
  const steps: [number, string][] = [[1024 ** 3, "GiB"], [1024 ** 2, "MiB"], [1024, "KiB"]];
  for (const [step, unit] of steps) if (bytes >= step) return `${(bytes / step).toFixed(1)} ${unit}`;
  return `${bytes} B`;
}
