/** What the model is writing: one letter, or letter after letter. A letter of a byte model may take several tokens. */

import { isUnfinished } from "./letters.js";
import type { Vocabulary } from "./letters.js";

export class Writer {
  mode: "idle" | "step" | "write" = "idle";
  bytes: number[] = []; // the bytes of an unfinished letter
  sessions = 0;

  constructor(readonly vocabulary: Vocabulary) {}

  get isWriting() {
    return this.mode === "write";
  }

  /** The group of Undo: what the model writes until it pauses is undone together. */
  get group() {
    return this.isWriting ? `write ${this.sessions}` : "";
  }

  start(mode: "step" | "write") {
    this.mode = mode;
    this.sessions++;
  }

  stop() {
    this.mode = "idle";
    this.bytes = [];
  }

  /** Add a token, and return the letter that it completes. If there is none, the model goes on to complete it. */
  add(id: number) {
    const bytes = [...this.bytes, id];
    if (this.vocabulary.isByte && isUnfinished(bytes)) {
      if (this.mode === "idle") this.mode = "step";
      this.bytes = bytes;
      return "";
    }
    this.endLetter();
    return this.vocabulary.decode(bytes);
  }

  /** The text is another one: an unfinished letter is dropped, and a step has ended. */
  endLetter() {
    this.bytes = [];
    if (this.mode === "step") this.mode = "idle";
  }
}
