/** A placeholder until the page's own parts arrive. */

import { connect } from "./engine.js";

const data = JSON.parse(document.getElementById("data")?.textContent ?? "null");
const engine = connect(data.models, (reply) => document.dispatchEvent(new CustomEvent("reply", { detail: reply })));
document.addEventListener("request", (event) => engine.send(/** @type {CustomEvent} */ (event).detail));
