/** Connects the page to a session: in a worker if the browser starts one, else in slices of time on the page itself. */

import source from "worker:source";

import { Session } from "./session.js";
import type { Reply, Request } from "./session.js";
import type { Model } from "./weights.js";

export function connect(models: Model[], onReply: (reply: Reply) => void) {
  let pass: ((request: Request) => void) | undefined;
  /** The request without a reply: a worker that dies leaves it to its successor. */
  let current: Request | undefined;

  const receive = (reply: Reply) => {
    if (reply.id === current?.id) current = undefined;
    onReply(reply);
  };
  const start = (to: (request: Request) => void) => {
    pass = to;
    if (current) pass(current);
  };
  const startHere = () => {
    const session = new Session(models, receive);
    start((request) => session.send(request));
  };

  try {
    const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    const worker = new Worker(address);
    worker.onmessage = ({ data }) => {
      if (data !== "ready") return receive(data);
      URL.revokeObjectURL(address);
      worker.postMessage(models);
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
  return {
    send(request: Request) {
      current = request;
      pass?.(request);
    },
  };
}
