// Server-sent events, as fetch receives them: the parts of one event end at an empty line.

const LONGEST_SILENCE = 60_000;
const MOST_CHARACTERS = 64 * 1024 * 1024;

export interface Frame {
  id: string;
  data: string;
}

// A connection may die without a word, as when a computer sleeps: a stream that is silent for longer than
// its server's comments are apart is broken. `isHeard`: not only after its first event.
export async function* framesOf(body: ReadableStream<Uint8Array>, isHeard: boolean): AsyncGenerator<Frame[]> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let pieces: string[] = [];
  let size = 0;
  let id = "";
  try {
    for (;;) {
      const { done, value } = await (isHeard ? spoken(reader.read()) : reader.read());
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
      if (!frames.length) continue;
      isHeard = true;
      yield frames;
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

async function spoken<T>(reading: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const silence = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error("the connection is silent")), LONGEST_SILENCE);
  });
  try {
    return await Promise.race([reading, silence]);
  } finally {
    clearTimeout(timer);
  }
}

const endAcross = (before: string, value: string): number => (before.endsWith("\n") && value.startsWith("\n") ? 1 : -1);
