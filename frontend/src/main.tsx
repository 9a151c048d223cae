import { render } from "preact";
import { App } from "./app";
import { findSource } from "./source";
import "./style.css";
import "./plots.css";

const root = document.getElementById("app")!;
root.textContent = "";
render(<App source={findSource()} />, root);
