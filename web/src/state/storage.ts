// What a tab remembers (sessionStorage: conversations, secrets), and what a browser does (localStorage:
// language, theme). A browser may forbid both: then nothing is remembered.

import { isObject } from "../client/types";

const MOST_CHARACTERS = 500_000;

function read(storage: () => Storage, key: string): unknown {
  try {
    return JSON.parse(storage().getItem(key) ?? "null");
  } catch {
    return null;
  }
}

function write(storage: () => Storage, key: string, value: unknown): void {
  try {
    const text = JSON.stringify(value);
    if (value === null || text.length > MOST_CHARACTERS) storage().removeItem(key);
    else storage().setItem(key, text);
  } catch {
    // It is full, or forbidden.
  }
}

export const ofTab = {
  read: (key: string): Record<string, unknown> | null => {
    const found = read(() => sessionStorage, `parley:${key}`);
    return isObject(found) ? found : null;
  },
  write: (key: string, value: unknown): void => write(() => sessionStorage, `parley:${key}`, value),
};

export const ofBrowser = {
  read: (key: string): string => {
    const found = read(() => localStorage, `parley:${key}`);
    return typeof found === "string" ? found : "";
  },
  write: (key: string, value: string): void => write(() => localStorage, `parley:${key}`, value || null),
};
