// Server-sent events, as fetch receives them: the parts of one event end at an empty line.

const MOST_CHARACTERS = 64 * 1024 * 1024;

export interface Frame {
  id: string;
  data: string;
}

export async function* framesOf(body: ReadableStream<Uint8Array>): AsyncGenerator<Frame[]> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let pieces: string[] = [];
  let size = 0;
  let id = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const last = value.lastIndexOf("\n\n");
      const end = last < 0 && pieces.length ? endAcross(pieces.at(-1) ?? "", value) : last < 0 ? -1 : last + 2;
      if (end < 0) {
        pieces.push(value);
        size += value.length;
        if (size > MOST_CHARACTERS) throw new Error("an event of the stream is too large");
        continue;
      }
      const whole = pieces.join("") + value.slice(0, end);
      pieces = value.length > end ? [value.slice(end)] : [];
      size = value.length - end;
      const frames: Frame[] = [];
      for (const block of whole.split("\n\n")) {
        const data: string[] = [];
        for (const line of block.split("\n")) {
          if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
          else if (line.startsWith("id:")) id = line.slice(3).trim();
        }
        if (data.length) frames.push({ id, data: data.join("\n") });
      }
      if (frames.length) yield frames;
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

const endAcross = (before: string, value: string): number => (before.endsWith("\n") && value.startsWith("\n") ? 1 : -1);
