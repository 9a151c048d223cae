import { render } from "preact";
import type { Page } from "./page";
import { Report } from "./report";
import "./style.css";
import "./plots.css";
import "./report.css";

const root = document.getElementById("report")!;
const page = JSON.parse(document.getElementById("page")!.textContent!) as Page;
const tables = [...root.childNodes]; // for readers without JavaScript
root.replaceChildren();
try {
  render(<Report page={page} />, root);
} catch (error) {
  root.replaceChildren(...tables);
  throw error;
}
