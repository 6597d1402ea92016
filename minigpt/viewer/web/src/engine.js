/** Connects the page to a session: in a worker if the browser starts one, else in slices of time on the page itself. */

import source from "worker:source";

import { Session } from "./session.js";

/**
 * @typedef {import("./session.js").Request} Request
 * @param {import("./weights.js").Model[]} models
 * @param {(reply: import("./session.js").Reply) => void} onReply
 * @returns {{send: (request: Request) => void}}
 */
export function connect(models, onReply) {
  const needed = models.map(({ config, weights }) => ({ config, weights }));
  /** @type {Worker | Session | undefined} */
  let target;
  let waiting = /** @type {Request[]} */ ([]);

  const start = (/** @type {Worker | Session} */ ready) => {
    target = ready;
    for (const request of waiting) send(request);
    waiting = [];
  };
  const send = (/** @type {Request} */ request) => {
    if (target instanceof Session) target.send(request);
    else if (target) target.postMessage(request);
    else waiting.push(request);
  };

  try {
    const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    worker.onmessage = ({ data }) => {
      if (data !== "ready") return onReply(data);
      worker.postMessage(needed);
      start(worker);
    };
    // A policy that blocks the worker is an event, not an exception. Later, the worker has run out of memory.
    worker.onerror = (event) => {
      event.preventDefault();
      worker.terminate();
      start(new Session(needed, onReply));
    };
  } catch { // some browsers refuse workers to pages from a file
    start(new Session(needed, onReply));
  }
  return { send };
}
