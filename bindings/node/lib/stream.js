"use strict";

/**
 * What a generation gives, part by part (`for await`), and its result (`await`). It begins at once and waits for no reader;
 * parts that nobody has read yet are kept. Leaving the loop early ends the generation.
 */
class Stream {
  #parts = [];
  #wake = () => {};
  #ended = false;
  #done;
  #cancel;

  /**
   * @param begin called with a function that takes parts; returns a promise of the result.
   * @param cancel ends what begin began.
   * @param signal an AbortSignal, or undefined.
   * @param wasCut returns whether a result is of a generation that was cancelled.
   */
  constructor(begin, cancel, signal, wasCut) {
    this.#cancel = cancel;
    this.#done = this.#run(begin, cancel, signal, wasCut);
  }

  async #run(begin, cancel, signal, wasCut) {
    try {
      signal?.throwIfAborted();
      signal?.addEventListener("abort", cancel);
      const result = await begin((part) => {
        this.#parts.push(part);
        this.#wake();
      });
      if (signal?.aborted && wasCut(result)) throw signal.reason;
      return result;
    } catch (error) {
      throw signal?.aborted && error?.code === "CANCELLED" ? signal.reason : error;
    } finally {
      signal?.removeEventListener("abort", cancel);
      this.#ended = true;
      this.#wake();
    }
  }

  /** End the generation after what it has given; what was generated stays. */
  cancel() {
    this.#cancel();
  }

  then(fulfilled, rejected) {
    return this.#done.then(fulfilled, rejected);
  }

  catch(rejected) {
    return this.#done.catch(rejected);
  }

  finally(settled) {
    return this.#done.finally(settled);
  }

  async *[Symbol.asyncIterator]() {
    this.#done.catch(() => {}); // thrown below
    try {
      for (;;) {
        while (this.#parts.length > 0) yield this.#parts.shift();
        if (this.#ended) break;
        await new Promise((resolve) => {
          this.#wake = resolve;
        });
      }
      await this.#done;
    } finally {
      if (!this.#ended) {
        this.#cancel();
        await this.#done.catch(() => {});
      }
    }
  }
}

module.exports = { Stream };
