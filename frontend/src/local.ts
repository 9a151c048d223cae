/** Explain an input in the page itself, as `seqloom.lab.explore` does, but without gradients. */
import { pack, type Matrix } from "./arrays";
import { Model, type Packed, type Run } from "./model";
import type { Clamp, Explanation, Finding, LayerInfo, Question } from "./types";

const LEAST_CHANGE = 0.02; // of a probability that counts as an effect, as in finding.py
const LEAST_TURN = 0.1; // between the parts before and after a word at which a text turns, as in finding.py
const MAX_STEPS = 400; // steps that a page explains by itself
const HELD_UNITS = 8; // units that are held one by one, those that change most
const MAX_OUTPUTS = 8;

const f = (v: number) => v.toFixed(2);
const winner = (p: Float64Array) => p.indexOf(Math.max(...p));

export class LocalModel {
  private readonly model: Model;

  constructor(private readonly name: string, packed: Packed) {
    this.model = new Model(packed);
  }

  split(text: string): string[] {
    return this.model.split(text);
  }

  explain(all: string[], question: Question): { explanation: Explanation; matrices: Record<string, Matrix> } {
    if (!all.length) throw new Error("the input is empty; type a text, or choose an example");
    const { model } = this;
    const words = all.slice(0, MAX_STEPS);
    const ids = model.encode(words);
    const clamps = question.clamps ?? [];
    const uniform = question.uniform_attention ?? false;
    const plain = model.run(ids);
    this.check(clamps, plain);
    const run = clamps.length || uniform ? model.run(ids, clamps, uniform) : plain;
    const labels = model.packed.labels;
    const target = question.output !== undefined && question.output < labels.length ? question.output : plain.outputs.indexOf(Math.max(...plain.outputs));
    const read = (some: number[]) => model.run(some, clamps, uniform).outputs;
    const growth = ids.map((_, t) => (model.isCausal ? model.read(run.steps, t + 1) : read(ids.slice(0, t + 1))));
    const without = ids.map((_, t) => (ids.length > 1 ? read(ids.filter((_, s) => s !== t)) : read([1])));
    const effects = without.map((p) => run.outputs[target] - p[target]);
    const shown = this.choose(run.outputs, target);
    const notes = all.length > words.length ? [`The input has ${all.length} steps; the page explains the first ${MAX_STEPS} by itself.`] : [];
    const unknown = ids.flatMap((id, t) => (model.isUnknown(id) ? [t] : []));
    if (unknown.length) notes.push(`Not in the vocabulary, read as unknown: ${unknown.slice(0, 20).map((t) => `'${words[t]}'`).join(", ")}.`);
    const { layers, matrices } = this.collect(run);
    for (const [name, heads] of Object.entries(run.attention)) {
      matrices[`attention/${name}`] = pack(heads.flatMap((head) => head.flatMap((row) => [...row])), [heads.length, ids.length, ids.length]);
    }
    const explanation: Explanation = {
      key: "page",
      name: this.name,
      kind: "classify",
      parameters: model.packed.parameters,
      steps: words,
      unknown,
      notes,
      findings: this.find(words, ids, run, target, growth, without, effects, clamps, uniform, read),
      prediction: {
        text: labels[model.choose(run.outputs)],
        value: run.outputs[target],
        outputs: shown.map((k) => ({ index: k, label: labels[k], values: [run.outputs[k]] })),
        others: labels.length - shown.length,
        steps: [],
        best: [],
        is_value: false,
      },
      before: clamps.length || uniform ? plain.outputs[target] : null,
      target: { output: target, step: null, label: labels[target] },
      growth: { steps: ids.map((_, t) => t), lines: shown.map((k) => ({ index: k, label: labels[k], values: growth.map((p) => p[k]) })) },
      contributions: { windows: ids.map((_, t) => [t, t + 1]), occlusion: effects, deletes: true, gradients: null, gap: null },
      layers,
      attention: Object.entries(run.attention).map(([name, heads]) => ({ name, heads: heads.length, queries: ids.length, keys: ids.length })),
      arrays: Object.fromEntries(Object.entries(matrices).map(([name, m]) => [name, { shape: m.shape, low: m.low, high: m.high }])),
      features: [],
    };
    return { explanation, matrices };
  }

  private check(clamps: Clamp[], run: Run): void {
    for (const c of clamps) {
      const layer = run.values[c.layer];
      if (!layer) throw new Error(`no layer '${c.layer}' to clamp; the model has ${Object.keys(run.values).join(", ") || "none"}`);
      if (!layer[c.letter] || c.letter.startsWith("a(")) throw new Error(`${c.layer} has no '${c.letter}' to clamp`);
      const outside = c.units.find((u) => u < 0 || u >= layer[c.letter][0].length);
      if (outside !== undefined) throw new Error(`unit ${outside} does not exist; ${c.letter} of ${c.layer} has ${layer[c.letter][0].length} units`);
    }
  }

  private choose(p: Float64Array, target: number): number[] {
    const order = [...p.keys()].sort((a, b) => Number(b === target) - Number(a === target) || p[b] - p[a]).slice(0, MAX_OUTPUTS);
    return order.length === p.length ? order.sort((a, b) => a - b) : order;
  }

  private collect(run: Run): { layers: LayerInfo[]; matrices: Record<string, Matrix> } {
    const matrices: Record<string, Matrix> = {};
    const layers = Object.entries(run.values).map(([name, letters]) => {
      for (const [letter, steps] of Object.entries(letters)) {
        matrices[`${name}/${letter}`] = pack(steps.flatMap((v) => [...v]), [steps.length, steps[0].length]);
      }
      const change = [...letters.h[0].keys()].map((u) => letters.h.reduce((sum, h, t) => sum + Math.abs(h[u] - (t ? letters.h[t - 1][u] : 0)), 0));
      const ranking = [...change.keys()].sort((a, b) => change[b] - change[a]);
      return { name, cell: this.model.packed.layer.cell, equations: this.model.packed.layer.equations, letters: Object.keys(letters), ranking, groups: [], flow: null };
    });
    return { layers, matrices };
  }

  /** The same statements as finding.py, in the same words. */
  private find(
    words: string[], ids: number[], run: Run, target: number, growth: Float64Array[], without: Float64Array[],
    effects: number[], clamps: Clamp[], uniform: boolean, read: (ids: number[]) => Float64Array,
  ): Finding[] {
    const labels = this.model.packed.labels;
    const [p, label] = [run.outputs[target], `'${labels[target]}'`];
    const most = effects.indexOf(Math.max(...effects));
    if (effects[most] < LEAST_CHANGE) {
      return [{ text: `No single step decides ${label} (${f(p)}).`, check: `occlusion: at most ${f(Math.max(0, effects[most]))} each`, confirmed: true, step: null, unit: null }];
    }
    const order = [...effects.keys()].sort((a, b) => effects[b] - effects[a]);
    const negations = order.filter((t) => effects[t] >= LEAST_CHANGE && this.isNegation(words[t]));
    const best = [...negations, most].find((t) => winner(without[t]) !== target) ?? most;
    const rest = p - effects[best];
    const rival = winner(without[best]);
    const turn = rival !== target
      ? `'${words[best]}' turns the prediction to ${label} (${f(rest)} -> ${f(p)}); without it the prediction is '${labels[rival]}'.`
      : `${label} (${f(p)}) rests most on '${words[best]}', without which it is ${f(rest)}.`;
    const first: Finding = { text: turn, check: `occlusion: ${f(p)} with it, ${f(rest)} without it`, confirmed: true, step: best, unit: null };
    const findings = [first];
    let last = -1;
    growth.forEach((q, t) => {
      if (winner(q) !== target) last = t;
    });
    if (last >= 0 && last + 1 < words.length) {
      const at = last + 1;
      const text = `Changed its mind at '${words[at]}' (${f(growth[at - 1][target])} -> ${f(growth[at][target])}).`;
      const confirmed = effects[at] >= LEAST_CHANGE;
      if (at === best && confirmed) first.text = `${text} ${turn}`;
      else findings.push({ text, check: `occlusion: ${f(p)} with it, ${f(p - effects[at])} without it`, confirmed, step: at, unit: null });
    }
    const contrast = this.findContrast(words, ids, p, target, growth, effects[most], read);
    if (contrast) findings.splice(contrast.step === first.step ? 1 : 0, 0, contrast); // a word that decides alone says more
    const unit = this.findUnit(words, ids, run, target, findings[0].step!, clamps, uniform);
    if (unit) findings.push(unit);
    return findings.sort((a, b) => Number(b.confirmed) - Number(a.confirmed));
  }

  private isNegation(word: string): boolean {
    const plain = word.toLowerCase().replace("\u2019", "'");
    return this.model.packed.negations.includes(plain) || plain.endsWith("n't");
  }

  /** The word at which a text turns, or after which it decides; see finding.py. */
  private findContrast(
    words: string[], ids: number[], p: number, target: number, growth: Float64Array[], most: number,
    read: (ids: number[]) => Float64Array,
  ): Finding | null {
    const labels = this.model.packed.labels;
    let best: { change: number; step: number; before: Float64Array; after: number } | null = null;
    const isWord = words.map((word) => /[\p{L}\p{N}]/u.test(word)); // punctuation belongs to neither part
    for (let t = 1; t < words.length - 1; t++) {
      if (!this.model.packed.contrasts.includes(words[t].toLowerCase())) continue;
      const end = isWord.lastIndexOf(true, t - 1);
      const start = isWord.indexOf(true, t + 1);
      if (end < 0 || start < 0) continue;
      const before = growth[end];
      const after = read(ids.slice(start));
      if (winner(after) !== target || after[target] < p - LEAST_TURN) continue;
      const change = after[target] - before[target];
      if (!best || change > best.change) best = { change, step: t, before, after: after[target] };
    }
    if (!best) return null;
    const { step, before, after } = best;
    const [rival, left] = [winner(before), before[target]];
    const [word, label] = [`'${words[step]}'`, `'${labels[target]}'`];
    let text: string;
    if (rival !== target && p - left >= LEAST_TURN) text = `Turns at ${word}: '${labels[rival]}' (${f(before[rival])}) before it, ${label} (${f(after)}) after it.`;
    else if (p - left >= Math.max(LEAST_TURN, most)) text = `What follows ${word} decides ${label} (${f(p)}): ${f(after)} alone, ${f(left)} without it.`;
    else return null;
    const check = `occlusion: ${f(p)} with ${word} and what follows, ${f(left)} without; ${f(after)} without what precedes`;
    return { text, check, confirmed: true, step, unit: null };
  }

  /** Hold units that change at a step at their values before it, and name the one that matters most. */
  private findUnit(words: string[], ids: number[], run: Run, target: number, step: number, clamps: Clamp[], uniform: boolean): Finding | null {
    const name = Object.keys(run.values)[0];
    if (!name) return null;
    const h = run.values[name].h;
    const before = (u: number) => (step > 0 ? h[step - 1][u] : 0);
    let best = { unit: -1, held: Infinity };
    const change = [...h[step].keys()].sort((a, b) => Math.abs(h[step][b] - before(b)) - Math.abs(h[step][a] - before(a)));
    for (const u of change.slice(0, HELD_UNITS)) {
      const clamp: Clamp = { layer: name, letter: "h", value: before(u), units: [u], steps: [step, step] };
      const held = this.model.run(ids, [...clamps, clamp], uniform).outputs[target];
      if (held < best.held) best = { unit: u, held };
    }
    const p = run.outputs[target];
    if (best.unit < 0 || p - best.held < LEAST_CHANGE / 4) return null;
    return {
      text: `At '${words[step]}', unit ${best.unit} of ${name} changed for this output: h ${before(best.unit).toFixed(2)} -> ${h[step][best.unit].toFixed(2)}.`,
      check: `held at ${before(best.unit).toFixed(2)} there: ${p.toFixed(3)} becomes ${best.held.toFixed(3)}`,
      confirmed: true,
      step,
      unit: [name, best.unit],
    };
  }
}
