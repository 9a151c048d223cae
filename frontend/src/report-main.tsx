import { render } from "preact";
import type { Page } from "./page";
import { Report } from "./report";
import "./style.css";
import "./plots.css";
import "./report.css";

const root = document.getElementById("report")!;
const page = JSON.parse(document.getElementById("page")!.textContent!) as Page;
root.textContent = ""; // the tables for readers without JavaScript
render(<Report page={page} />, root);
