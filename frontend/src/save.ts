/** Save a picture as SVG or PNG, and its data as CSV. */

function download(name: string, blob: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function saveText(name: string, text: string, type: string): void {
  download(name, new Blob([text], { type }));
}

/** A figure as one SVG that needs no style sheet; canvases become images inside it. */
export function drawSvg(figure: HTMLElement): { text: string; width: number; height: number } {
  const outer = figure.getBoundingClientRect();
  const namespace = "http://www.w3.org/2000/svg";
  const result = document.createElementNS(namespace, "svg");
  const width = Math.ceil(outer.width);
  const height = Math.ceil(outer.height);
  result.setAttribute("xmlns", namespace);
  result.setAttribute("width", String(width));
  result.setAttribute("height", String(height));
  result.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const back = document.createElementNS(namespace, "rect");
  back.setAttribute("width", "100%");
  back.setAttribute("height", "100%");
  back.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
  result.append(back);
  for (const node of figure.querySelectorAll<SVGSVGElement | HTMLCanvasElement>("svg, canvas")) {
    const box = node.getBoundingClientRect();
    const [x, y] = [box.left - outer.left, box.top - outer.top];
    if (node instanceof HTMLCanvasElement) {
      const image = document.createElementNS(namespace, "image");
      image.setAttribute("href", node.toDataURL("image/png"));
      for (const [name, value] of Object.entries({ x, y, width: box.width, height: box.height })) {
        image.setAttribute(name, String(value));
      }
      result.append(image);
    } else {
      const copy = node.cloneNode(true) as SVGSVGElement;
      inlineStyle(node, copy);
      for (const [name, value] of Object.entries({ x, y, width: box.width, height: box.height })) {
        copy.setAttribute(name, String(value));
      }
      result.append(copy);
    }
  }
  for (const label of listLegendTexts(figure, outer)) result.append(label);
  return { text: new XMLSerializer().serializeToString(result), width, height };
}

const STYLES = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin",
  "font-size", "font-family", "font-weight", "text-anchor", "opacity",
];

/** The words of legends and captions, which are HTML, as SVG texts at the same places. */
function listLegendTexts(figure: HTMLElement, outer: DOMRect): SVGTextElement[] {
  const texts: SVGTextElement[] = [];
  for (const part of figure.querySelectorAll(".legend, figcaption")) {
    const walker = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode as Text;
      const range = document.createRange();
      range.selectNodeContents(node);
      const box = range.getBoundingClientRect();
      if (!node.data.trim() || !box.width || node.parentElement!.closest("svg, .all")) continue;
      const style = getComputedStyle(node.parentElement!);
      const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
      text.textContent = node.data.trim();
      text.setAttribute("x", String(box.left - outer.left));
      text.setAttribute("y", String(box.top - outer.top + 0.76 * box.height)); // the line on which letters stand
      text.setAttribute("fill", style.color);
      for (const name of ["font-size", "font-family", "font-weight"]) text.setAttribute(name, style.getPropertyValue(name));
      texts.push(text);
    }
  }
  return texts;
}

function inlineStyle(from: Element, to: Element): void {
  const style = getComputedStyle(from);
  for (const name of STYLES) to.setAttribute(name, style.getPropertyValue(name));
  to.removeAttribute("class");
  for (let i = 0; i < from.children.length; i++) inlineStyle(from.children[i], to.children[i]);
}

export function saveSvg(figure: HTMLElement, name: string): void {
  saveText(`${name}.svg`, drawSvg(figure).text, "image/svg+xml");
}

export async function savePng(figure: HTMLElement, name: string): Promise<void> {
  const { text, width, height } = drawSvg(figure);
  const image = new Image();
  image.src = `data:image/svg+xml;base64,${btoa(unescape(encodeURIComponent(text)))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * width; // sharp in print
  canvas.height = 2 * height;
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => blob && download(`${name}.png`, blob));
}
