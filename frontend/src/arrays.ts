/** Pure functions over arrays of numbers: no page, no canvas. */
import type { ArrayInfo } from "./types";

/** An array of 16-bit numbers and the values that 0 and 65535 stand for. */
export class Matrix {
  readonly scale: number;

  constructor(
    readonly data: Uint16Array,
    readonly shape: number[],
    readonly low: number,
    readonly high: number,
  ) {
    this.scale = (high - low) / 65535;
  }

  /** The value at a position in the order of the memory. */
  at(index: number): number {
    return this.low + this.data[index] * this.scale;
  }

  /** The value of a (steps, units) matrix. */
  get(step: number, unit: number): number {
    return this.at(step * this.shape[1] + unit);
  }
}

export function unpack(buffer: ArrayBuffer, info: ArrayInfo): Matrix {
  return new Matrix(new Uint16Array(buffer), info.shape, info.low, info.high);
}

/** Pack numbers as the server does. */
export function pack(values: ArrayLike<number>, shape: number[]): Matrix {
  let low = Infinity;
  let high = -Infinity;
  for (let i = 0; i < values.length; i++) {
    low = Math.min(low, values[i]);
    high = Math.max(high, values[i]);
  }
  if (!values.length) [low, high] = [0, 0];
  const data = new Uint16Array(values.length);
  const scale = high > low ? 65535 / (high - low) : 0;
  for (let i = 0; i < values.length; i++) data[i] = Math.round((values[i] - low) * scale);
  return new Matrix(data, shape, low, high);
}

export function decodeBase64(text: string): ArrayBuffer {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length); // a loop: Uint8Array.from with a function takes 20 times as long
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes.buffer;
}

/** Rows of a heat map: by number, by rank of effect, or by group and rank inside it. */
export function orderUnits(order: string, units: number, ranking: number[], groups: number[]): number[] {
  const numbers = Array.from({ length: units }, (_, i) => i);
  if (order === "number" || ranking.length !== units) return numbers;
  if (order === "effect" || groups.length !== units) return ranking.slice();
  const rank = new Map(ranking.map((unit, place) => [unit, place]));
  return numbers.sort((a, b) => groups[a] - groups[b] || rank.get(a)! - rank.get(b)!);
}

/** A diverging scale around zero: blue below, white or black at zero, orange above; t from -1 to 1. */
export function diverging(t: number, dark: boolean): [number, number, number] {
  const s = Math.max(-1, Math.min(1, t));
  const middle = dark ? [24, 26, 31] : [250, 250, 248];
  const end = s < 0 ? (dark ? [92, 160, 255] : [20, 88, 190]) : dark ? [255, 164, 84] : [196, 84, 0];
  const w = Math.sqrt(Math.abs(s));
  return [0, 1, 2].map((i) => Math.round(middle[i] + (end[i] - middle[i]) * w)) as [number, number, number];
}

/** A scale from 0 to 1 for gates and attention, darker or brighter with the value. */
export function sequential(t: number, dark: boolean): [number, number, number] {
  const s = Math.max(0, Math.min(1, t));
  const low = dark ? [24, 26, 31] : [250, 250, 248];
  const high = dark ? [120, 220, 190] : [0, 84, 72];
  return [0, 1, 2].map((i) => Math.round(low[i] + (high[i] - low[i]) * s)) as [number, number, number];
}

/** Round limits and ticks of an axis. */
export function ticks(low: number, high: number, count = 4): number[] {
  if (!(high > low)) return [low];
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw)!;
  const result: number[] = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) {
    result.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  }
  return result;
}

export function format(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 10 ** -digits)) return value.toExponential(1);
  return value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : digits).replace("-", "−");
}

/** A probability, or a value of another scale. */
export function formatOutput(value: number | null | undefined, isValue: boolean): string {
  if (!isValue && typeof value === "number" && value > 0 && value < 0.001) return "<0.001";
  return format(value);
}

/** A field of a CSV file; quotes it where needed, and defuses what a spreadsheet would run as a formula. */
export function csvField(value: unknown): string {
  let text = value === null || value === undefined ? "" : String(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function toCsv(header: string[], rows: unknown[][]): string {
  return [header, ...rows].map((row) => row.map(csvField).join(",")).join("\r\n") + "\r\n";
}

/** The part of a long sequence that is shown, moved so that it contains the cursor. */
export function clampWindow(start: number, size: number, total: number): [number, number] {
  const width = Math.max(1, Math.min(size, total));
  const from = Math.max(0, Math.min(start, total - width));
  return [from, from + width];
}

/** Contribution of each step from windows of steps. */
export function spread(windows: [number, number][], values: (number | null)[], steps: number): number[] {
  const result = new Array<number>(steps).fill(0);
  windows.forEach(([a, b], i) => {
    for (let t = a; t < b; t++) result[t] = values[i] ?? 0;
  });
  return result;
}
