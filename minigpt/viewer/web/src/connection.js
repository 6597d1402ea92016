/** Connects the page to a session: in a worker if the browser starts one, else in slices of time on the page itself. */

import source from "worker:source";

import { Session } from "./session.js";

/** @typedef {import("./session.js").Request} Request */
/** @typedef {import("./session.js").Reply} Reply */
/** @param {import("./weights.js").Model[]} models @param {(reply: Reply) => void} onReply
 * @returns {{send: (request: Request) => void}} */
export function connect(models, onReply) {
  const needed = models.map(({ config, weights }) => ({ config, weights }));
  /** @type {((request: Request) => void) | undefined} */
  let pass;
  /** The request without a reply: a worker that dies leaves it to its successor. */
  let current = /** @type {Request | undefined} */ (undefined);

  const receive = (/** @type {Reply} */ reply) => {
    if (reply.id === current?.id) current = undefined;
    onReply(reply);
  };
  const start = (/** @type {(request: Request) => void} */ to) => {
    pass = to;
    if (current) pass(current);
  };
  const startHere = () => {
    const session = new Session(needed, receive);
    start((request) => session.send(request));
  };
  const send = (/** @type {Request} */ request) => {
    current = request;
    pass?.(request);
  };

  try {
    const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    worker.onmessage = ({ data }) => {
      if (data !== "ready") return receive(data);
      worker.postMessage(needed);
      start((request) => worker.postMessage(request));
    };
    // A policy that blocks the worker is an event, not an exception. Later, the worker has run out of memory.
    worker.onerror = (event) => {
      event.preventDefault();
      worker.onmessage = worker.onerror = null;
      worker.terminate();
      startHere();
    };
  } catch { // some browsers refuse workers to pages from a file
    startHere();
  }
  return { send };
}
