/** Where answers come from: a server on this machine, or a page that holds them itself. */
import { decodeBase64, unpack, type Matrix } from "./arrays";
import { LocalModel } from "./local";
import type { Packed } from "./model";
import type { About, Curve, Explanation, Match, Question, Row } from "./types";

export interface Source {
  /** Whether the data can be searched, and a training followed. */
  readonly canSearch: boolean;
  /** Milliseconds to wait after a key before an input is explained. */
  readonly pause: number;
  /** Whether any input of a run can be explained, or only recorded ones. */
  canCompute(run: string): boolean;
  about(): Promise<About>;
  rows(run: string): Promise<Row[]>;
  explain(question: Question): Promise<Explanation>;
  array(explanation: Explanation, name: string): Promise<Matrix>;
  similar(question: Question, span: [number, number], units: number[]): Promise<{ units: number[]; matches: Match[] }>;
  curves(run: string): Promise<{ lines: Curve[]; finished: string | null }>;
}

async function ask<T>(question: string, document: unknown): Promise<T> {
  let response: Response;
  try {
    response = await fetch(`api/${question}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(document),
    });
  } catch {
    throw new Error("seqloom explore has stopped; start it again in the terminal and reload this page");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
  return answer as T;
}

export class Server implements Source {
  readonly canSearch = true;
  readonly pause = 250;

  canCompute() {
    return true;
  }

  about() {
    return ask<About>("about", {});
  }

  async rows(run: string) {
    return (await ask<{ rows: Row[] }>("rows", { run })).rows;
  }

  explain(question: Question) {
    return ask<Explanation>("explain", question);
  }

  async array(explanation: Explanation, name: string) {
    const query = new URLSearchParams({ key: explanation.key, name });
    const response = await fetch(`api/array?${query}`);
    if (!response.ok) throw new Error((await response.json()).error);
    return unpack(await response.arrayBuffer(), explanation.arrays[name]);
  }

  similar(question: Question, span: [number, number], units: number[]) {
    return ask<{ units: number[]; matches: Match[] }>("similar", { ...question, span, units });
  }

  curves(run: string) {
    return ask<{ lines: Curve[]; finished: string | null }>("curves", { run });
  }
}

/** What `seqloom explore --out` writes into a page. */
export interface Recording {
  about: About;
  rows: Record<string, Row[]>;
  curves: Record<string, { lines: Curve[]; finished: string | null }>;
  explanations: Record<string, Record<string, Explanation>>; // by run, then by row number
  models?: Record<string, Packed>; // by run
  arrays: string[]; // key and name of each element that holds an array as base64
}

export class Recorded implements Source {
  readonly canSearch = false;
  readonly pause = 8; // enough to skip letters that are typed faster than a page computes
  private readonly models: Record<string, LocalModel> = {};
  private readonly matrices = new WeakMap<Explanation, Record<string, Matrix>>();

  constructor(private readonly recording: Recording, private readonly readArray: (number: number) => string | null) {
    for (const [run, packed] of Object.entries(recording.models ?? {})) this.models[run] = new LocalModel(run, packed);
  }

  canCompute(run: string) {
    return run in this.models;
  }

  async about() {
    return this.recording.about;
  }

  async rows(run: string) {
    return this.recording.rows[run] ?? [];
  }

  async explain(question: Question) {
    const known = this.recording.explanations[question.run] ?? {};
    const found = question.row === undefined ? undefined : known[String(question.row)];
    const isPlain = !question.clamps?.length && !question.uniform_attention;
    const isTarget = question.output === undefined || question.output === found?.target.output;
    if (found && isPlain && isTarget) return found;
    const model = this.models[question.run];
    if (!model) {
      const reason = found ? "computes other outputs and interventions" : "explains other inputs";
      throw new Error(`This page holds recorded examples; \`seqloom explore RUN\` ${reason}.`);
    }
    const words = found ? found.steps : model.split(question.input ?? "");
    const { explanation, matrices } = model.explain(words, question);
    this.matrices.set(explanation, matrices);
    return explanation;
  }

  async array(explanation: Explanation, name: string) {
    const computed = this.matrices.get(explanation)?.[name];
    if (computed) return computed;
    const at = this.recording.arrays.indexOf(`${explanation.key}/${name}`);
    const packed = this.readArray(at);
    if (packed === null) throw new Error(`This page was saved without ${name}.`);
    return unpack(decodeBase64(packed), explanation.arrays[name]);
  }

  async similar(): Promise<{ units: number[]; matches: Match[] }> {
    throw new Error("This page holds recorded examples; `seqloom explore RUN` searches the data.");
  }

  async curves(run: string) {
    return this.recording.curves[run] ?? { lines: [], finished: null };
  }
}

/** The recording inside this page, or the server that sent it. */
export function findSource(): Source {
  const inside = document.getElementById("recording");
  if (!inside?.textContent) return new Server();
  const arrays = document.getElementsByClassName("array"); // megabytes, which are read when they are drawn
  return new Recorded(JSON.parse(inside.textContent), (number) => arrays[number]?.textContent ?? null);
}
