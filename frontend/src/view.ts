/** What the page shows, kept in its address so that a link restores it. */
import type { Clamp } from "./types";

export interface View {
  run: string;
  other: string;
  input: string;
  row: number | null;
  output: number | null;
  step: number | null;
  cursor: number | null;
  span: [number, number] | null;
  layer: string;
  letter: string;
  order: string;
  unit: number | null;
  clamps: Clamp[];
  uniform: boolean;
  method: string;
}

export const START: View = {
  run: "",
  other: "",
  input: "",
  row: null,
  output: null,
  step: null,
  cursor: null,
  span: null,
  layer: "",
  letter: "",
  order: "effect",
  unit: null,
  clamps: [],
  uniform: false,
  method: "occlusion",
};

/** Write the fields that differ from the start. */
export function writeView(view: View): string {
  const changed = Object.entries(view).filter(
    ([name, value]) => JSON.stringify(value) !== JSON.stringify(START[name as keyof View]),
  );
  return changed.length ? "#" + encodeURIComponent(JSON.stringify(Object.fromEntries(changed))) : "";
}

/** Read a view from an address; fields of the wrong type are left out. */
export function readView(hash: string): View {
  const view: Record<string, unknown> = { ...START };
  let stored: unknown;
  try {
    stored = JSON.parse(decodeURIComponent(hash.replace(/^#/, "")));
  } catch {
    return { ...START };
  }
  if (typeof stored !== "object" || stored === null) return { ...START };
  for (const [name, value] of Object.entries(stored)) {
    if (isValid(name, value)) view[name] = value;
  }
  return view as unknown as View;
}

function isValid(name: string, value: unknown): boolean {
  if (!(name in START)) return false;
  if (["run", "other", "input", "layer", "letter", "order", "method"].includes(name)) return typeof value === "string";
  if (["row", "output", "step", "cursor", "unit"].includes(name)) return value === null || Number.isInteger(value);
  if (name === "uniform") return typeof value === "boolean";
  if (name === "span") return value === null || isPair(value);
  return Array.isArray(value) && value.every(isClamp);
}

function isPair(value: unknown): boolean {
  return Array.isArray(value) && value.length === 2 && value.every(Number.isInteger);
}

function isClamp(value: unknown): boolean {
  if (typeof value !== "object" || value === null) return false;
  const c = value as Record<string, unknown>;
  return (
    typeof c.layer === "string" &&
    typeof c.letter === "string" &&
    Number.isFinite(c.value) &&
    Array.isArray(c.units) &&
    c.units.every(Number.isInteger) &&
    (c.steps === null || isPair(c.steps))
  );
}
