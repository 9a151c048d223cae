/** Axes: where a value lies on them, and their tick labels. No page, no SVG. */
import { formatNumber, group, isNumber } from "./numbers";

const PAD = 0.04; // share of the axis beyond the outermost values
const FLOOR = 0.07; // share of a logarithmic axis for values of 0 or less
const HUGE = 1e300; // differences between larger numbers overflow
const SUPERSCRIPTS: Record<string, string> = Object.fromEntries([..."-0123456789"].map((c, i) => [c, "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"[i]]));

export interface Tick {
  at: number; // share of the axis, 0 to 1
  text: string;
}

/** An axis from `low` to `high`; on a logarithmic axis both are exponents of 10, with `floor` below them. */
export class Scale {
  constructor(
    readonly low: number,
    readonly high: number,
    readonly log = false,
    readonly floor = 0,
    readonly ticks: Tick[] = [],
  ) {}

  /** The position of a value as a share of the axis, 0 to 1. */
  at(value: number): number {
    if (this.log && value <= 0) return 0;
    const v = this.log ? Math.log10(value) : limit(value);
    const share = (v - this.low) / (this.high - this.low);
    return Math.min(1, Math.max(0, this.floor + (1 - this.floor) * share));
  }

  /** Whether a line may pass through the value. */
  shows(value: number | null | undefined): value is number {
    return isNumber(value) && !(this.log && value <= 0);
  }
}

const limit = (v: number) => Math.max(-HUGE, Math.min(HUGE, v));

/** Fit an axis to the values; `marks` are the ticks of a logarithmic axis. */
export function makeScale(values: (number | null | undefined)[], log = false, marks: number[] = [], count = 6): Scale {
  const finite = values.filter(isNumber).map(limit);
  return log ? makeLogarithmic(finite, marks, count) : makeLinear(finite, count);
}

/** An axis of names, as many of them labelled as fit. */
export function makeNameScale(names: string[], most = 7): Scale {
  const bare = new Scale(-0.5, names.length - 0.5);
  const every = Math.max(1, Math.ceil(names.length / most));
  const ticks = names.map((text, i) => ({ at: bare.at(i), text })).filter((_, i) => i % every === 0);
  return new Scale(bare.low, bare.high, false, 0, ticks);
}

const least = (values: number[], otherwise: number) => values.reduce((a, b) => Math.min(a, b), values.length ? Infinity : otherwise);
const most = (values: number[], otherwise: number) => values.reduce((a, b) => Math.max(a, b), values.length ? -Infinity : otherwise);

function makeLinear(values: number[], count: number): Scale {
  let [low, high] = [least(values, 0), most(values, 1)];
  if (low === high) [low, high] = [low - (Math.abs(low) / 10 || 1), high + (Math.abs(high) / 10 || 1)];
  const atZero = low >= 0 && low <= 0.35 * high; // then the axis begins at 0
  const room = PAD * (high - low);
  [low, high] = [atZero ? 0 : low - room, high + room];
  const bare = new Scale(low, high);
  const ticks = roundNumbers(low, high, count, values.length > 0 && values.every(Number.isInteger));
  return new Scale(low, high, false, 0, formatTicks(ticks).map(([v, text]) => ({ at: bare.at(v), text })));
}

/** Label evenly spaced numbers with as many decimals as they need. */
function formatTicks(ticks: number[]): [number, string][] {
  if (!ticks.length) return [];
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : Math.abs(ticks[0]) || 1;
  let last = Math.floor(Math.log10(step) + 1e-9); // the place of the digit that changes
  if (Math.abs(step / 10 ** last - 2.5) < 1e-6) last -= 1;
  const largest = Math.max(...ticks.map(Math.abs));
  if (last >= -4 && largest < 1e6) return ticks.map((t) => [t, t ? group(t.toFixed(Math.max(0, -last))) : "0"]);
  return ticks.map((t) => [t, formatNumber(t, Math.max(1, Math.floor(Math.log10(largest)) - last + 1))]);
}

/** About `count` multiples of 1, 2, 2.5 or 5 times a power of 10; with `whole`, of whole numbers only. */
export function roundNumbers(low: number, high: number, count: number, whole = false): number[] {
  const rough = Math.max((high - low) / count, whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const steps = [1, 2, 2.5, 5].map((m) => m * power).filter((s) => !whole || Number.isInteger(s));
  const step = steps.find((s) => s >= rough * 0.999) ?? 10 * power;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: 2 * count + 2 }, (_, i) => (first + i) * step).filter((t) => t <= high + 1e-9 * step);
}

function makeLogarithmic(values: number[], marks: number[], count: number): Scale {
  const positive = values.filter((v) => v > 0).map(Math.log10);
  let [low, high] = [least(positive, -1), most(positive, 0)];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const room = PAD * (high - low);
  [low, high] = [low - room, high + room];
  const floor = positive.length < values.length ? FLOOR : 0;
  const bare = new Scale(low, high, true, floor);
  const ticks = chooseTicks(low, high, marks, count).map(([v, text]) => ({ at: bare.at(v), text }));
  if (floor) ticks.unshift({ at: 0, text: least(values, 0) === 0 ? "0" : "≤ 0" });
  return new Scale(low, high, true, floor, ticks);
}

function chooseTicks(low: number, high: number, marks: number[], count: number): [number, string][] {
  if (marks.length) return marks.map((v) => [v, formatNumber(v)]);
  if (high - low < 0.7) return formatTicks(roundNumbers(10 ** low, 10 ** high, count).filter((v) => v > 0)); // less than from 1 to 5
  const exponents: number[] = [];
  for (let e = Math.ceil(low); e <= Math.floor(high); e++) exponents.push(e);
  if (high - low < 2.5) {
    const values: [number, string][] = [];
    for (let e = Math.floor(low); e <= Math.ceil(high); e++) {
      for (const m of [1, 2, 5]) {
        const v = m * 10 ** e;
        if (v > 0 && Math.log10(v) >= low && Math.log10(v) <= high) values.push([v, formatNumber(v)]);
      }
    }
    return values;
  }
  const step = Math.ceil(exponents.length / count);
  const chosen = exponents.filter((e) => e % step === 0 && 10 ** e > 0);
  const asPowers = Math.min(...chosen) < -3 || Math.max(...chosen) > 5;
  return chosen.map((e) => [10 ** e, asPowers ? `10${[...String(e)].map((c) => SUPERSCRIPTS[c]).join("")}` : formatNumber(10 ** e)]);
}
