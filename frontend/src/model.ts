/** Run a packed model in the page: the equations of the cells, one line each, with interventions. */
import type { Clamp } from "./types";

export interface Packed {
  labels: string[];
  words: string[];
  unit: string;
  lowercase: boolean;
  scale: number;
  layer: {
    cell: string;
    hidden: number;
    layers: number;
    bidirectional: boolean;
    equations: string;
    heads?: number;
    context?: string[];
    norm?: boolean;
    initial?: number;
    causal?: boolean;
    base?: number;
  };
  readout: string;
  normalised: boolean;
  temperature: number;
  weights: number[];
  threshold: number | null;
  positive: number;
  parameters: number;
  contrasts: string[]; // of `seqloom.lab.explore.finding`
  negations: string[];
  tensors: Record<string, { shape: number[]; data: string }>;
}

type Vector = Float64Array<ArrayBuffer>;

interface Weight {
  rows: number;
  columns: number;
  data: Float32Array;
}

export interface Run {
  outputs: Vector; // probabilities of the classes
  steps: Vector[]; // the layer's output at each step
  values: Record<string, Record<string, Vector[]>>; // by layer and letter, for each step
  attention: Record<string, Vector[][]>; // by module: heads, queries, keys
}

const SPECIALS = 4; // padding, unknown, start and end come first in every vocabulary
const UNKNOWN = 1;
const LETTER = String.raw`\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}`;
const HAN = String.raw`\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}`;
// the pattern of `seqloom.lab.data.coders.text.WORDS`
const WORD = String.raw`</?[${LETTER}][^<>]*>|[${HAN}]|[[${LETTER}]--[${HAN}]]+(?:['\u2019][[${LETTER}]--[${HAN}]]+)*|[^${LETTER}\s]`;

/** Split a text as the model's coder does. */
export function split(text: string, unit: string, lowercase: boolean): string[] {
  const read = lowercase ? text.toLowerCase() : text;
  return unit === "characters" ? [...read] : read.match(new RegExp(WORD, "gv")) ?? [];
}

const sigmoid = (v: number) => 1 / (1 + Math.exp(-v));

/** The error function, to 1.2e-7 (Numerical Recipes, erfc by a Chebyshev fit). */
function erf(x: number): number {
  const z = Math.abs(x);
  const t = 1 / (1 + z / 2);
  const coefficients = [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277];
  let sum = 0;
  for (let i = coefficients.length - 1; i >= 0; i--) sum = sum * t + coefficients[i];
  const rest = t * Math.exp(-z * z + sum);
  return x >= 0 ? 1 - rest : rest - 1;
}

const gelu = (v: number) => 0.5 * v * (1 + erf(v / Math.SQRT2));

function softmax(scores: Vector): Vector {
  const most = Math.max(...scores);
  const result = scores.map((s) => Math.exp(s - most));
  const sum = result.reduce((a, b) => a + b, 0);
  return result.map((v) => v / sum);
}

function normalise(x: Vector, scale: Weight, bias: Weight | undefined): Vector {
  const mean = x.reduce((a, b) => a + b, 0) / x.length;
  const variance = x.reduce((a, b) => a + (b - mean) ** 2, 0) / x.length;
  const factor = 1 / Math.sqrt(variance + 1e-5);
  return x.map((v, i) => (v - mean) * factor * scale.data[i] + (bias ? bias.data[i] : 0));
}

function multiply(w: Weight, x: Vector, bias: Weight | undefined, from = 0, rows = w.rows): Vector {
  const y = new Float64Array(rows);
  for (let i = 0; i < rows; i++) {
    let sum = bias ? bias.data[from + i] : 0;
    const start = (from + i) * w.columns;
    for (let j = 0; j < w.columns; j++) sum += w.data[start + j] * x[j];
    y[i] = sum;
  }
  return y;
}

function join(a: Vector, b: Vector): Vector {
  const result = new Float64Array(a.length + b.length);
  result.set(a);
  result.set(b, a.length);
  return result;
}

export class Model {
  private readonly tensors: Record<string, Weight> = {};
  private readonly ids: Map<string, number>;
  private readonly vectors = new Map<number, Vector>(); // embeddings that were read
  private readonly projections = new Map<string, WeakMap<Vector, Vector>>(); // W x of those, which occlusions share

  constructor(readonly packed: Packed) {
    for (const [name, { shape, data }] of Object.entries(packed.tensors)) {
      const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
      const columns = shape.length > 1 ? shape[1] : 1;
      this.tensors[name] = { rows: shape[0], columns, data: new Float32Array(bytes.buffer) };
    }
    this.ids = new Map(packed.words.map((word, i) => [word, i + SPECIALS]));
  }

  split(text: string): string[] {
    return split(text, this.packed.unit, this.packed.lowercase);
  }

  encode(words: string[]): number[] {
    return words.map((word) => this.ids.get(word) ?? UNKNOWN);
  }

  isUnknown(id: number): boolean {
    return id === UNKNOWN;
  }

  private get(name: string): Weight | undefined {
    return this.tensors[name];
  }

  /** Run a sequence of ids; clamps hold gates and states, as `seqloom.tools.intervene.Clamp` does. */
  run(ids: number[], clamps: Clamp[] = [], uniform = false): Run {
    const { layer } = this.packed;
    let x = ids.map((id) => this.embed(id));
    const run: Run = { outputs: new Float64Array(), steps: [], values: {}, attention: {} };
    if (layer.cell === "transformer") x = this.transform(x, run, uniform);
    else for (let i = 0; i < layer.layers; i++) x = this.scanBoth(x, i, run, clamps, uniform);
    run.steps = x;
    run.outputs = this.read(x, x.length);
    return run;
  }

  private embed(id: number): Vector {
    let vector = this.vectors.get(id);
    if (!vector) {
      const table = this.get("embed.table.weight")!;
      const row = table.data.subarray(id * table.columns, (id + 1) * table.columns);
      this.vectors.set(id, (vector = Float64Array.from(row, (v) => v * this.packed.scale)));
    }
    return vector;
  }

  /** W x + b, remembered for the vectors of the vocabulary. */
  private project(name: string, x: Vector): Vector {
    let known = this.projections.get(name);
    if (!known) this.projections.set(name, (known = new WeakMap()));
    let y = known.get(x);
    if (!y) known.set(x, (y = multiply(this.get(`layer.weight_${name}`)!, x, this.get(`layer.bias_${name}`))));
    return y;
  }

  private scanBoth(x: Vector[], index: number, run: Run, clamps: Clamp[], uniform: boolean): Vector[] {
    const forwards = this.scan(x, `l${index}`, false, run, clamps, uniform);
    if (!this.packed.layer.bidirectional) return forwards;
    const backwards = this.scan(x, `l${index}_reverse`, true, run, clamps, uniform);
    return forwards.map((y, t) => join(y, backwards[t]));
  }

  private scan(x: Vector[], suffix: string, reverse: boolean, run: Run, clamps: Clamp[], uniform: boolean): Vector[] {
    const { cell, hidden, initial } = this.packed.layer;
    const name = `layer.${suffix}`;
    const mine = clamps.filter((c) => c.layer === name);
    const values: Record<string, Vector[]> = {};
    const keep = (letter: string, t: number, v: Vector) => ((values[letter] ??= new Array<Vector>(x.length))[t] = v);
    const hold = (letter: string, t: number, v: Vector): Vector => {
      for (const c of mine) {
        if (c.letter !== letter || (c.steps && (t < c.steps[0] || t > c.steps[1]))) continue;
        if (c.units.length) for (const u of c.units) v[u] = c.value;
        else v.fill(c.value);
      }
      return v;
    };
    const weight = (letter: string) => this.get(`layer.${letter}_${suffix}`);
    let h: Vector = new Float64Array(hidden).fill(cell === "attn_rnn" ? initial! : 0);
    let c: Vector = new Float64Array(hidden);
    const outputs = new Array<Vector>(x.length);
    for (let i = 0; i < x.length; i++) {
      const t = reverse ? x.length - 1 - i : i;
      const before = h;
      if (cell === "attn_rnn") {
        const step = this.attend(weight("weight_u") ? this.project(`u_${suffix}`, x[t]) : x[t], before, weight, uniform);
        step.shares.forEach((share, k) => keep(`a(${this.packed.layer.context![k]})`, t, share));
        const { o } = step;
        const g = hold("g", t, step.g);
        const n = this.packed.layer.norm ? normalise(o.map((v, u) => v + before[u]), weight("scale_n")!, weight("bias_n")) : o;
        h = g.map((v, u) => v * n[u] + (1 - v) * before[u]);
        keep("o", t, o);
        keep("g", t, g);
      } else {
        const a = this.project(`ih_${suffix}`, x[t]);
        const b = multiply(weight("weight_hh")!, before, weight("bias_hh"));
        const gate = (k: number, f: (v: number) => number) => new Float64Array(hidden).map((_, u) => f(a[k * hidden + u] + b[k * hidden + u]));
        if (cell === "gru") {
          const r = hold("r", t, gate(0, sigmoid));
          const z = hold("z", t, gate(1, sigmoid));
          const n = hold("n", t, new Float64Array(hidden).map((_, u) => Math.tanh(a[2 * hidden + u] + r[u] * b[2 * hidden + u])));
          h = z.map((v, u) => (1 - v) * n[u] + v * before[u]);
          Object.entries({ r, z, n }).forEach(([letter, v]) => keep(letter, t, v));
        } else {
          const i_ = hold("i", t, gate(0, sigmoid));
          const f = hold("f", t, gate(1, sigmoid));
          const g = hold("g", t, gate(2, Math.tanh));
          const o = hold("o", t, gate(3, sigmoid));
          const old = c;
          c = f.map((v, u) => v * old[u] + i_[u] * g[u]);
          const now = c;
          h = o.map((v, u) => v * Math.tanh(now[u]));
          Object.entries({ i: i_, f, g, o }).forEach(([letter, v]) => keep(letter, t, v));
          c = hold("c", t, c);
          keep("c", t, c);
        }
      }
      h = hold("h", t, h);
      keep("h", t, h);
      outputs[t] = h;
    }
    run.values[name] = { h: values.h, ...(values.c ? { c: values.c } : {}), ...values };
    return outputs;
  }

  /** One step of AttnRNN: attention over the context, and what follows from it. */
  private attend(u: Vector, h: Vector, weight: (letter: string) => Weight | undefined, uniform: boolean) {
    const { heads, context, hidden } = this.packed.layer;
    const rows: Record<string, Vector> = { h, x: u, "h+x": h.map((v, i) => v + u[i]), "h*x": h.map((v, i) => v * u[i]) };
    const q = multiply(weight("weight_q")!, h, weight("bias_q"));
    const d = hidden / heads!;
    const shares = context!.map(() => new Float64Array(heads!));
    const mix = new Float64Array(hidden);
    for (let head = 0; head < heads!; head++) {
      const scores = new Float64Array(context!.length);
      context!.forEach((name, k) => {
        for (let j = head * d; j < (head + 1) * d; j++) scores[k] += uniform ? 0 : (q[j] * rows[name][j]) / Math.sqrt(d);
      });
      const a = softmax(scores);
      context!.forEach((name, k) => {
        shares[k][head] = a[k];
        for (let j = head * d; j < (head + 1) * d; j++) mix[j] += a[k] * rows[name][j];
      });
    }
    const o = multiply(weight("weight_o")!, mix, weight("bias_o")).map(gelu);
    return { shares, o, g: multiply(weight("weight_g")!, join(h, o), weight("bias_g")).map(sigmoid) };
  }

  private transform(inputs: Vector[], run: Run, uniform: boolean): Vector[] {
    const { layers, heads, causal, hidden, base } = this.packed.layer;
    const linear = (name: string, v: Vector) => multiply(this.get(`${name}.weight`)!, v, this.get(`${name}.bias`));
    const norm = (name: string, v: Vector) => normalise(v, this.get(`${name}.weight`)!, this.get(`${name}.bias`));
    const d = hidden / heads!;
    const rotate = (v: Vector, t: number): Vector => {
      const result = new Float64Array(hidden);
      for (let k = 0; k < heads!; k++) {
        for (let i = 0; i < d / 2; i++) {
          const angle = t * base! ** ((-2 * i) / d);
          const [a, b] = [v[k * d + i], v[k * d + d / 2 + i]];
          result[k * d + i] = a * Math.cos(angle) - b * Math.sin(angle);
          result[k * d + d / 2 + i] = a * Math.sin(angle) + b * Math.cos(angle);
        }
      }
      return result;
    };
    let x = inputs.map((v) => linear("layer.project", v));
    for (let l = 0; l < layers; l++) {
      const at = `layer.layer.layers.${l}`;
      const before = x.map((v) => norm(`${at}.norm_attention`, v));
      const q = before.map((v, t) => (uniform ? new Float64Array(hidden) : rotate(linear(`${at}.attention.q`, v), t)));
      const k = before.map((v, t) => rotate(linear(`${at}.attention.k`, v), t));
      const values = before.map((v) => linear(`${at}.attention.v`, v));
      const weights = Array.from({ length: heads! }, (_, head) =>
        q.map((query, t) => {
          const scores = new Float64Array(x.length).fill(-Infinity);
          for (let s = 0; s < (causal ? t + 1 : x.length); s++) {
            scores[s] = 0;
            for (let j = head * d; j < (head + 1) * d; j++) scores[s] += (query[j] * k[s][j]) / Math.sqrt(d);
          }
          return softmax(scores);
        }),
      );
      run.attention[`${at}.attention`] = weights;
      x = x.map((v, t) => {
        const mix = new Float64Array(hidden);
        weights.forEach((head, number) => {
          for (let s = 0; s < x.length; s++) {
            if (head[t][s] === 0) continue;
            for (let j = number * d; j < (number + 1) * d; j++) mix[j] += head[t][s] * values[s][j];
          }
        });
        const y = linear(`${at}.attention.out`, mix);
        return v.map((a, i) => a + y[i]);
      });
      x = x.map((v) => {
        const y = linear(`${at}.feed.W_2`, linear(`${at}.feed.W_1`, norm(`${at}.norm_feed`, v)).map(gelu));
        return v.map((a, i) => a + y[i]);
      });
    }
    return x.map((v) => norm("layer.layer.norm", v));
  }

  /** Whether the output after t steps is that of the first t steps alone. */
  get isCausal(): boolean {
    return !this.packed.layer.bidirectional && this.packed.layer.causal !== false;
  }

  /** Probabilities from the first n outputs of the layer. */
  read(steps: Vector[], n: number): Vector {
    const { readout, normalised, temperature, weights, layer } = this.packed;
    const width = steps[0].length;
    const some = steps.slice(0, n);
    const mean = new Float64Array(width).map((_, i) => some.reduce((a, y) => a + y[i], 0) / n);
    const most = () => new Float64Array(width).map((_, i) => Math.max(...some.map((y) => y[i])));
    let summary: Vector = mean;
    if (readout === "max") summary = most();
    else if (readout === "max_mean") summary = join(most(), mean);
    else if (readout === "last") {
      summary = some[n - 1];
      if (layer.bidirectional) summary = join(summary.slice(0, width / 2), some[0].slice(width / 2));
    }
    let logits: Vector;
    if (normalised) {
      const ready = normalise(summary, this.get("head.0.weight")!, this.get("head.0.bias"));
      logits = multiply(this.get("head.1.weight")!, ready, this.get("head.1.bias"));
    } else logits = multiply(this.get("head.weight")!, summary, this.get("head.bias"));
    return softmax(logits.map((v, i) => (v - (weights.length ? Math.log(weights[i]) : 0)) / temperature));
  }

  /** The class that the model predicts for probabilities. */
  choose(p: Vector): number {
    const { threshold, positive, weights, temperature } = this.packed;
    if (threshold !== null) return p[positive] >= threshold ? positive : 1 - positive;
    const scores = weights.length ? p.map((v, i) => Math.log(v) * temperature + Math.log(weights[i])) : p;
    return scores.indexOf(Math.max(...scores));
  }
}
