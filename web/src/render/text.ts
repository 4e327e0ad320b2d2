// Text of others, made harmless for a line: no controls that reverse or hide what follows, and no end.

// eslint-disable-next-line no-control-regex
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

export function plain(text: unknown, most = 300): string {
  const found = typeof text === "string" ? text : text === undefined || text === null ? "" : String(text);
  const shown = found.length > most ? `${found.slice(0, most)}…` : found;
  return shown.replace(CONTROLS, "");
}

// An address that a person may open: of the web or of mail.
export function openable(address: unknown, also: readonly string[] = []): string | null {
  if (typeof address !== "string" || address.length > 4000) return null;
  try {
    const { protocol, href } = new URL(address);
    return ["https:", "http:", ...also].includes(protocol) ? href : null;
  } catch {
    return null;
  }
}
