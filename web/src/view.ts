// The view that a narrow screen shows; a wide one shows all.

import { signal } from "@preact/signals";

export type View = "chat" | "skills" | "timeline";

export const view = signal<View>("chat");
