/** The page: one cursor over all views of an input. */
import { useCallback, useEffect, useMemo, useState } from "preact/hooks";
import { clampWindow, format } from "./arrays";
import { type Frame } from "./chart";
import { Attention, Contributions, Curves, Findings, Flow, Growth, Input, Intervene, Memory, Notes, Prediction, Series, Similar, Strip } from "./panels";
import { CopyButton, useDark, useWidth } from "./panel";
import type { Source } from "./source";
import type { About, Explanation, Question, RunInfo } from "./types";
import { readView, writeView, START, type View } from "./view";

const WINDOW = 600; // steps of a long sequence that are shown at first
const LONG = 200; // steps from which cards outside the screen are neither laid out nor painted
const SETTLED = 120; // milliseconds without a change after which the link and the words follow

function makeQuestion(view: View, run: string): Question | null {
  if (!run || (view.row === null && !view.input.trim())) return null;
  const question: Question = { run, clamps: view.clamps, uniform_attention: view.uniform };
  if (view.row !== null) question.row = view.row;
  else question.input = view.input;
  if (view.output !== null) question.output = view.output;
  if (view.step !== null) question.step = view.step;
  return question;
}

/** Ask for an explanation whenever the question changes; an old answer never replaces a newer one. */
function useExplanation(source: Source, question: Question | null) {
  const [state, setState] = useState<{ value: Explanation | null; error: string; busy: boolean }>({ value: null, error: "", busy: false });
  const key = JSON.stringify(question);
  useEffect(() => {
    if (!question) {
      setState({ value: null, error: "", busy: false });
      return;
    }
    let current = true;
    setState((s) => ({ ...s, busy: true }));
    const pause = setTimeout(() => {
      source.explain(question).then(
        (value) => current && setState({ value, error: "", busy: false }),
        (error) => current && setState((s) => ({ value: s.value, error: String(error.message ?? error), busy: false })),
      );
    }, question.input !== undefined ? source.pause : 0);
    return () => {
      current = false;
      clearTimeout(pause);
    };
  }, [key]);
  return state;
}

/** The window of steps once it stands still: words take longer to lay out than a frame lasts. */
function useSettled(from: number, to: number, total: number): [number, number] {
  const [settled, setSettled] = useState({ from, to, total });
  useEffect(() => {
    const pause = setTimeout(() => setSettled({ from, to, total }), settled.total === total ? SETTLED : 0);
    return () => clearTimeout(pause);
  }, [from, to, total]);
  return settled.total === total ? [settled.from, settled.to] : [from, to];
}

export function App({ source }: { source: Source }) {
  const [about, setAbout] = useState<About | null>(null);
  const [problem, setProblem] = useState("");
  const [view, setView] = useState<View>(() => readView(location.hash));
  const [range, setRange] = useState<[number, number]>([0, WINDOW]);
  const [main, width] = useWidth();
  const dark = useDark();
  const change = useCallback((part: Partial<View>) => setView((v) => ({ ...v, ...part })), []);

  useEffect(() => {
    source.about().then(
      (value) => {
        setAbout(value);
        const good = value.runs.find((r) => !r.problem) ?? value.runs[0];
        setView((v) => (value.runs.some((r) => r.name === v.run) ? v : { ...v, run: good?.name ?? "" }));
      },
      (error) => setProblem(String(error.message ?? error)),
    );
    const follow = () => setView(readView(location.hash));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, [source]);

  useEffect(() => {
    const pause = setTimeout(() => {
      const hash = writeView(view);
      if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname + location.search);
    }, SETTLED);
    return () => clearTimeout(pause);
  }, [view]);

  const info = about?.runs.find((r) => r.name === view.run);
  const ready = info && !info.problem;
  const { value: shown, error, busy } = useExplanation(source, ready ? makeQuestion(view, view.run) : null);
  const otherQuestion = ready && view.other ? makeQuestion({ ...view, output: null, step: null, clamps: [], uniform: false }, view.other) : null;
  if (otherQuestion && view.row !== null && shown && info?.unit) {
    delete otherQuestion.row; // rows are numbered in each run; the text is what both can read
    otherQuestion.input = shown.steps.join(info.unit === "characters" || info.unit === "bytes" ? "" : " ");
  }
  const other = useExplanation(source, otherQuestion);
  const total = shown?.steps.length ?? 0;
  useEffect(() => setRange([0, Math.min(WINDOW, Math.max(1, total))]), [total]);

  const onCursor = useCallback((step: number) => setView((v) => (v.cursor === step ? v : { ...v, cursor: step })), []);
  const [from, to] = clampWindow(range[0], range[1] - range[0], Math.max(1, total));
  const frame: Frame = { width, from, to, labels: shown?.steps ?? [], cursor: view.cursor, span: view.span, onCursor };

  const words = useSettled(from, to, total);

  const onKey = useCallback((event: KeyboardEvent) => {
    const target = event.target as HTMLElement;
    if (!total || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -total, End: total };
    if (event.key === "Escape") {
      change({ span: null, unit: null });
      return;
    }
    if (!(event.key in moves)) return;
    event.preventDefault();
    const was = view.cursor ?? (moves[event.key] > 0 ? -1 : total);
    const now = Math.max(0, Math.min(total - 1, was + moves[event.key]));
    const anchor = view.span ? (view.span[0] === was ? view.span[1] : view.span[0]) : Math.max(0, Math.min(total - 1, was));
    change({ cursor: now, span: event.shiftKey ? [Math.min(anchor, now), Math.max(anchor, now)] : view.span });
    if (now < from || now >= to) setRange(clampWindow(now - Math.floor((to - from) / 2), to - from, total));
  }, [total, view.cursor, view.span, from, to, change]);
  useEffect(() => {
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [onKey]);

  const input = useMemo(() => ready && <Input source={source} info={info} view={view} change={change} />, [source, info, view.row, view.input]);
  const answer = useMemo(() => shown && (
    <>
      <Notes notes={shown.notes} />
      <div class={view.other ? "columns" : ""}>
        <Findings shown={shown} change={change} title={view.other ? view.run : "Finding"} />
        {view.other && (other.value ? <Findings shown={other.value} change={change} title={view.other} />
          : <section class="card"><h2>{view.other}</h2><p>{other.error || "Computing…"}</p></section>)}
      </div>
      <div class={view.other ? "columns" : ""}>
        <Prediction shown={shown} view={view} change={change} title={view.other ? `Prediction of ${view.run}` : "Prediction"} />
        {view.other && other.value && <Prediction shown={other.value} view={null} change={change} title={`Prediction of ${view.other}`} />}
      </div>
    </>
  ), [shown, other.value, other.error, view.run, view.other]); // not drawn again when the cursor moves
  const curves = useMemo(() => ready && <Curves source={source} run={view.run} />, [source, ready, view.run, width]);

  const spoken = shown && view.cursor !== null && view.cursor < total ? speak(shown, view.cursor) : "";
  return (
    <div class={`page${busy ? " busy" : ""}${total >= LONG ? " long" : ""}`}>
      <header>
        <h1>seqloom <span>explore</span></h1>
        {about && (
          <>
            <label>model <select value={view.run} onChange={(e) => change({ run: e.currentTarget.value, output: null, step: null, clamps: [], layer: "", letter: "", unit: null })}>
              {about.runs.map((r) => <option key={r.name} value={r.name}>{r.name}{r.problem ? " (cannot be opened)" : ""}</option>)}
            </select></label>
            {about.runs.length > 1 && (
              <label>beside <select value={view.other} onChange={(e) => change({ other: e.currentTarget.value })}>
                <option value="">none</option>
                {about.runs.filter((r) => r.name !== view.run && !r.problem && r.kind === info?.kind).map((r) => <option key={r.name} value={r.name}>{r.name}</option>)}
              </select></label>
            )}
            {info && !info.problem && (
              <p class="facts">{info.model} · {info.kind} · {info.data}{shown && ` · ${shown.parameters.toLocaleString("en")} parameters`}</p>
            )}
          </>
        )}
        <CopyButton text={() => location.href} label="copy link" title="Copy a link that restores this view" />
        {shown && info?.unit && <CopyButton text={writePython(view.run, shown, info)} label="copy as Python" title="Copy the lines that predict this input" />}
        <button type="button" onClick={() => setView({ ...START, run: view.run })}>reset</button>
      </header>
      <main ref={main}>
        {problem && <p class="problem" role="alert">{problem}</p>}
        {!about && !problem && <p class="loading" role="status">Loading the models…</p>}
        {info?.problem && <p class="problem" role="alert">{view.run} cannot be shown: {info.problem}</p>}
        {input}
        {ready && error && <p class="problem" role="alert">{error}</p>}
        {ready && !shown && !error && <p class="hint">{busy ? "Computing…" : "Type an input or choose an example to look inside the model."}</p>}
        {ready && shown && (
          <>
            {answer}
            {total > 1 && <WindowBar total={total} from={from} to={to} onRange={setRange} />}
            {shown.features.length > 0
              ? <Series source={source} shown={shown} frame={frame} />
              : <Strip shown={shown} view={view} change={change} from={words[0]} to={words[1]} />}
            <Growth shown={shown} other={other.value} frame={frame} />
            <Contributions shown={shown} view={view} change={change} frame={frame} />
            <Memory source={source} shown={shown} view={view} change={change} frame={frame} dark={dark} />
            <Attention source={source} shown={shown} frame={frame} dark={dark} />
            <Flow shown={shown} other={other.value} frame={frame} />
            <Intervene shown={shown} view={view} change={change} live={source.canCompute(view.run)} />
            <Similar source={source} shown={shown} view={view} change={change} question={makeQuestion(view, view.run)} />
          </>
        )}
        {curves}
      </main>
      <p class="spoken" role="status" aria-live="polite">{spoken}</p>
      <footer>
        <p>
          Arrow keys move the cursor, Shift + arrows mark a span, Escape clears it. {about && `seqloom ${about.version}`}
        </p>
      </footer>
    </div>
  );
}

function writePython(run: string, shown: Explanation, info: RunInfo): string {
  const text = shown.steps.join(info.unit === "characters" || info.unit === "bytes" ? "" : " ");
  return [
    "import seqloom",
    "",
    `run = seqloom.Run.load(${JSON.stringify(`runs/${run}`)})`,
    `print(run.predict([${JSON.stringify(text)}], probabilities=True))`,
    "",
  ].join("\n");
}

function speak(shown: Explanation, step: number): string {
  const parts = [`step ${step} ${shown.steps[step]}`];
  const { windows, occlusion } = shown.contributions;
  const at = windows.findIndex(([a, b]) => step >= a && step < b);
  if (at >= 0) parts.push(`contribution ${format(occlusion[at])}`);
  const line = shown.growth?.lines.find((l) => l.index === shown.target.output);
  const place = shown.growth?.steps.indexOf(step) ?? -1;
  if (line && place >= 0) parts.push(`${shown.target.label} ${format(line.values[place])}`);
  return parts.join(", ");
}

function WindowBar({ total, from, to, onRange }: { total: number; from: number; to: number; onRange: (r: [number, number]) => void }) {
  const width = to - from;
  if (total <= 80) return null;
  return (
    <div class="window">
      <label>steps {from} to {to - 1} of {total.toLocaleString("en")} <input type="range" min={0} max={Math.max(0, total - width)} value={from}
        onInput={(e) => onRange([Number(e.currentTarget.value), Number(e.currentTarget.value) + width])} /></label>
      <button type="button" onClick={() => onRange(clampWindow(from + Math.floor(width / 4), Math.max(20, Math.ceil(width / 2)), total))}>zoom in</button>
      <button type="button" onClick={() => onRange(clampWindow(from - Math.floor(width / 2), Math.min(total, width * 2), total))}>zoom out</button>
    </div>
  );
}
