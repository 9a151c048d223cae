"use strict";

// The page reads without this script; it adds sorting, values on pointing, the legend's switches, copying and the scheme.

const SVG = "http://www.w3.org/2000/svg";
const most = () => (innerWidth < 544 ? 6 : 12); // lines in a tip

function make(name, parent, text = "", kind = "") {
  const element = document.createElement(name);
  if (kind) element.className = kind;
  element.textContent = text;
  parent.append(element);
  return element;
}

function draw(name, parent, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}

function scheme() {
  const button = document.getElementById("scheme");
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.scheme || (system.matches ? "dark" : "light")) === "dark";
  const show = () => (button.textContent = dark() ? "Light" : "Dark");
  const name = () => button.setAttribute("aria-label", dark() ? "Light colours" : "Dark colours");
  button.addEventListener("click", () => {
    root.dataset.scheme = dark() ? "light" : "dark";
    show();
    name();
  });
  system.addEventListener("change", () => (show(), name()));
  show();
  name();
  button.hidden = false;
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const first = [...body.rows];
  heads.forEach((head, column) => {
    const text = head.textContent;
    head.textContent = "";
    const button = make("button", head, text || "name");
    button.type = "button";
    button.addEventListener("click", () => {
      const numeric = head.classList.contains("n");
      const turns = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
      const next = turns[turns.indexOf(head.getAttribute("aria-sort")) + 1]; // after both, the first order again
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (next) head.setAttribute("aria-sort", next);
      body.append(...(next ? sorted(first, column, numeric, next === "descending" ? -1 : 1) : first));
    });
  });
}

function sorted(rows, column, numeric, sign) {
  const key = (row) => {
    const cell = row.cells[column];
    if (!numeric) return cell.textContent;
    return "key" in cell.dataset ? Number(cell.dataset.key) : null; // what is missing stays below
  };
  const compare = (a, b) => (numeric ? a - b : a.localeCompare(b, undefined, { numeric: true }));
  return [...rows].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * compare(a, b);
  });
}

function readable(plot) {
  const data = JSON.parse(plot.querySelector("script").textContent);
  const tip = plot.querySelector(".tip");
  const pictures = [...plot.querySelectorAll(".picture")];
  const figure = plot.closest("figure");
  const hidden = new Set();
  let at = -1;

  const shown = () => pictures.find((picture) => getComputedStyle(picture).display !== "none");
  const box = (picture) => picture.dataset.box.split(" ").map(Number);

  function clear() {
    plot.querySelectorAll(".cursor, .spot").forEach((old) => old.remove());
    tip.hidden = true;
  }

  function show(stop, height) {
    clear();
    at = stop;
    const [share, heading, all] = data.stops[stop];
    let rows = all.filter(([curve]) => !hidden.has(curve));
    if (!rows.length) return;
    const picture = shown();
    const [left, top, width, tall] = box(picture);
    const x = left + share * width;
    draw("line", picture, { class: "cursor", x1: x, x2: x, y1: top, y2: top + tall });
    const more = rows.length - most();
    if (more > 0 && height !== undefined) {
      rows = [...rows].sort((a, b) => Math.abs(a[1] - height) - Math.abs(b[1] - height));
    }
    tip.textContent = "";
    make("b", tip, heading);
    rows = rows.slice(0, most());
    if (data.names.length) rows.sort((a, b) => b[1] - a[1]);
    for (const [curve, y, text] of rows) {
      const cy = top + (1 - y) * tall;
      if (data.names.length) draw("circle", picture, { class: `spot ${data.colours[curve]}`, cx: x, cy, r: 6 });
      const line = make("div", tip);
      make("i", line, "", data.colours[curve]);
      if (data.names.length) make("span", line, data.names[curve]);
      make("em", line, text);
    }
    if (more > 0) make("div", tip, `and ${more} more`);
    tip.hidden = false;
    const scale = picture.clientWidth / picture.viewBox.baseVal.width;
    const beside = x * scale + 14;
    const room = plot.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, beside <= room ? beside : x * scale - 14 - tip.offsetWidth)}px`;
    tip.style.top = `${(top + 6) * scale}px`;
  }

  plot.addEventListener("pointermove", (event) => {
    if (!data.stops.length) return;
    const picture = shown();
    const [left, top, width, tall] = box(picture);
    const edge = picture.getBoundingClientRect();
    const scale = edge.width / picture.viewBox.baseVal.width;
    const share = ((event.clientX - edge.left) / scale - left) / width;
    const height = 1 - ((event.clientY - edge.top) / scale - top) / tall;
    const visible = data.stops.map((_, i) => i).filter((i) => data.stops[i][2].some(([curve]) => !hidden.has(curve)));
    if (!visible.length) return clear();
    const distance = (i) => Math.abs(data.stops[i][0] - share);
    show(visible.reduce((best, i) => (distance(i) < distance(best) ? i : best)), height);
  });
  plot.addEventListener("pointerleave", clear);
  plot.addEventListener("blur", clear);
  plot.addEventListener("keydown", (event) => {
    const last = data.stops.length - 1;
    const to = { ArrowRight: Math.min(last, at + 1), ArrowLeft: Math.max(0, at - 1), Home: 0, End: last }[event.key];
    if (event.key === "Escape") clear();
    if (to === undefined || last < 0) return;
    event.preventDefault();
    show(to);
  });

  const keys = [...figure.querySelectorAll(".legend button")];
  const groups = (curve) => plot.querySelectorAll(`g[data-curve="${curve}"]`);
  function set(key, on) {
    const curve = Number(key.dataset.curve);
    key.setAttribute("aria-pressed", String(on));
    on ? hidden.delete(curve) : hidden.add(curve);
    groups(curve).forEach((group) => group.classList.toggle("off", !on));
    clear();
  }
  for (const key of keys) {
    key.addEventListener("click", () => set(key, key.getAttribute("aria-pressed") !== "true"));
    const near = (on) => () => {
      const lit = on && key.getAttribute("aria-pressed") === "true";
      pictures.forEach((picture) => picture.classList.toggle("dim", lit));
      groups(key.dataset.curve).forEach((group) => group.classList.toggle("near", lit));
    };
    key.addEventListener("pointerenter", near(true));
    key.addEventListener("pointerleave", near(false));
    key.addEventListener("click", near(false));
  }
  if (keys.length > 5) {
    const all = make("button", make("li", figure.querySelector(".legend")), "Hide all", "all");
    all.type = "button";
    all.addEventListener("click", () => {
      const on = hidden.size > 0;
      keys.forEach((key) => set(key, on));
      all.textContent = on ? "Hide all" : "Show all";
    });
    keys.forEach((key) => key.addEventListener("click", () => (all.textContent = hidden.size ? "Show all" : "Hide all")));
  }
}

function copying(button) {
  const code = button.parentElement.querySelector("code");
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // where the browser forbids it, the text is marked for the person
      button.textContent = "Marked";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
}

// Only a box that scrolls is a stop of the tab key.
function stops() {
  for (const box of document.querySelectorAll(".scroll, .run pre")) {
    box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1;
  }
}

scheme();
document.querySelectorAll(".scroll > table:not(.shades)").forEach(sortable);
document.querySelectorAll(".plot").forEach(readable);
document.querySelectorAll(".copy").forEach(copying);
stops();
addEventListener("resize", stops);
document.querySelectorAll("details").forEach((details) => details.addEventListener("toggle", stops));
