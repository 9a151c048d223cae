/** What the explorer and the reports share around a picture: its frame with buttons, its width, and the scheme. */
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { savePng, saveSvg, saveText } from "./save";

export function useDark(): boolean {
  const query = useMemo(() => matchMedia("(prefers-color-scheme: dark)"), []);
  const [dark, setDark] = useState(query.matches);
  useEffect(() => {
    const change = () => setDark(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, [query]);
  return dark;
}

export function useWidth() {
  const ref = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(900);
  useLayoutEffect(() => {
    const measure = (inner: number) => setWidth(Math.max(240, Math.floor(inner) - 2));
    measure(ref.current!.clientWidth); // before the first paint
    const observer = new ResizeObserver(([entry]) => measure(entry.contentRect.width));
    observer.observe(ref.current!);
    return () => observer.disconnect();
  }, []);
  return [ref, width] as const;
}

interface PanelProps {
  title: string;
  id?: string; // of the section, for links
  name?: string; // of saved files
  csv?: () => string;
  pictures?: boolean; // whether it saves as SVG and PNG
  below?: ComponentChildren; // what belongs to the picture, but not into a saved one
  tools?: ComponentChildren;
  children: ComponentChildren;
  help?: string;
}

/** A titled picture that saves as SVG, PNG and CSV. */
export function Panel({ title, id, name, csv, tools, children, help, below, pictures = true }: PanelProps) {
  const figure = useRef<HTMLDivElement>(null);
  return (
    <section class="card" id={id} aria-label={title}>
      <div class="title">
        <h2>{title}</h2>
        {tools}
        {name && (
          <span class="save">
            {pictures && <button type="button" aria-label={`Save ${title} as SVG`} onClick={() => saveSvg(figure.current!, name)}>SVG</button>}
            {pictures && <button type="button" aria-label={`Save ${title} as PNG`} onClick={() => savePng(figure.current!, name)}>PNG</button>}
            {csv && <button type="button" aria-label={`Save ${title} as CSV`} onClick={() => saveText(`${name}.csv`, csv(), "text/csv")}>CSV</button>}
          </span>
        )}
      </div>
      {help && <p class="help">{help}</p>}
      <div ref={figure} class="figure">{children}</div>
      {below}
    </section>
  );
}

export function CopyButton({ text, label, title }: { text: string | (() => string); label: string; title: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    const value = typeof text === "string" ? text : text();
    try {
      await navigator.clipboard.writeText(value);
    } catch {
      prompt("Copy this:", value); // a page from disk has no clipboard in some browsers
    }
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return <button type="button" onClick={copy} title={title}>{done ? "copied" : label}</button>;
}
