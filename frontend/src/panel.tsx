/** What the explorer and the reports share around a picture: its frame with buttons, its width, and the scheme. */
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
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
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(240, Math.floor(entry.contentRect.width) - 2)));
    observer.observe(ref.current!);
    return () => observer.disconnect();
  }, []);
  return [ref, width] as const;
}

interface PanelProps {
  title: string;
  name?: string;
  csv?: () => string;
  tools?: ComponentChildren;
  children: ComponentChildren;
  help?: string;
}

/** A titled picture that saves as SVG, PNG and CSV. */
export function Panel({ title, name, csv, tools, children, help }: PanelProps) {
  const figure = useRef<HTMLDivElement>(null);
  return (
    <section class="card" aria-label={title}>
      <div class="title">
        <h2>{title}</h2>
        {tools}
        {name && (
          <span class="save">
            <button type="button" aria-label={`Save ${title} as SVG`} onClick={() => saveSvg(figure.current!, name)}>SVG</button>
            <button type="button" aria-label={`Save ${title} as PNG`} onClick={() => savePng(figure.current!, name)}>PNG</button>
            {csv && <button type="button" aria-label={`Save ${title} as CSV`} onClick={() => saveText(`${name}.csv`, csv(), "text/csv")}>CSV</button>}
          </span>
        )}
      </div>
      {help && <p class="help">{help}</p>}
      <div ref={figure} class="figure">{children}</div>
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
