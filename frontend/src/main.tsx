import { render } from "preact";
import { App } from "./app";
import { findSource } from "./source";
import "./style.css";

const root = document.getElementById("app")!;
root.textContent = "";
render(<App source={findSource()} />, root);
