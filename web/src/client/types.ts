// The data model of A2A 1.0, as its JSON is written. Members that the page does not read are left out.

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type Schema = { [keyword: string]: unknown };

export interface Part {
  text?: string;
  raw?: string;
  url?: string;
  data?: unknown;
  filename?: string;
  mediaType?: string;
  metadata?: Record<string, unknown>;
}

export interface Message {
  messageId: string;
  role: string;
  parts?: Part[];
  contextId?: string;
  taskId?: string;
  metadata?: Record<string, unknown>;
}

export interface Artifact {
  artifactId: string;
  name?: string;
  description?: string;
  parts?: Part[];
}

// A finished span of a task. Times are in milliseconds.
export interface Span {
  id: string;
  parent: string;
  name: string;
  start: number;
  duration: number;
  error: string;
  attributes?: Record<string, string>;
}

export interface TaskStatus {
  state: string;
  message?: Message;
  timestamp?: string;
}

export interface Task {
  id: string;
  contextId?: string;
  status: TaskStatus;
  artifacts?: Artifact[];
  history?: Message[];
}

export interface StatusUpdate {
  taskId: string;
  contextId?: string;
  status: TaskStatus;
  metadata?: Record<string, unknown>;
}

export interface ArtifactUpdate {
  taskId: string;
  contextId?: string;
  artifact: Artifact;
  append?: boolean;
  lastChunk?: boolean;
}

export interface StreamResponse {
  task?: Task;
  message?: Message;
  statusUpdate?: StatusUpdate;
  artifactUpdate?: ArtifactUpdate;
  error?: ErrorBody;
}

export interface StreamEvent {
  id: string;
  value: StreamResponse;
}

export interface Violation {
  field?: string;
  description?: string;
}

export interface ErrorBody {
  code?: number;
  status?: string;
  message?: string;
  details?: { reason?: string; fieldViolations?: Violation[] }[];
}

export interface Skill {
  id: string;
  name: string;
  description?: string;
  tags?: string[];
  examples?: string[];
  inputModes?: string[];
  outputModes?: string[];
}

export interface OAuthFlow {
  authorizationUrl?: string;
  tokenUrl?: string;
  scopes?: Record<string, string>;
}

export interface SecurityScheme {
  apiKeySecurityScheme?: { location?: string; name?: string; description?: string };
  httpAuthSecurityScheme?: { scheme?: string; bearerFormat?: string; description?: string };
  oauth2SecurityScheme?: { flows?: { authorizationCode?: OAuthFlow }; description?: string };
  openIdConnectSecurityScheme?: { openIdConnectUrl?: string; description?: string };
  mtlsSecurityScheme?: { description?: string };
}

export interface SecurityRequirement {
  schemes?: Record<string, { list?: string[] }>;
}

export interface Card {
  name: string;
  description?: string;
  version?: string;
  provider?: { organization?: string; url?: string };
  documentationUrl?: string;
  supportedInterfaces?: { url: string; protocolBinding: string; protocolVersion: string }[];
  capabilities?: { streaming?: boolean; extensions?: { uri: string; params?: Record<string, unknown> }[] };
  securitySchemes?: Record<string, SecurityScheme>;
  securityRequirements?: SecurityRequirement[];
  defaultInputModes?: string[];
  skills?: Skill[];
}

export const ENDED = ["TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED"];
export const ASKING = ["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"];

export const TASK_SPANS = "urn:parley:task-spans:v1";
export const RESUMABLE = "urn:parley:resumable-streams:v1";
export const IDEMPOTENT = "urn:parley:idempotent-send:v1";
export const SKILL_SCHEMAS = "urn:parley:skill-schemas:v1";
export const TYPED_QUESTIONS = "urn:parley:typed-questions:v1";
export const FILE_TRANSFER = "urn:parley:file-transfer:v1";
export const COMPOSITION = "urn:parley:composition:v1";
export const PROGRESS = "urn:parley:run-progress:v1";

export const isObject = (value: unknown): value is Record<string, unknown> =>
  value !== null && typeof value === "object" && !Array.isArray(value);

// What cards and answers promise is not always so: a list is checked before it is walked.
export const listOf = <T>(value: readonly T[] | undefined): readonly T[] => (Array.isArray(value) ? value : []);
